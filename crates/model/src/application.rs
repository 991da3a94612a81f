//! What a program is: how it is started, its parameters, where it can run, how it tells its time.

use crate::Invalid;
use crate::loss::OnLoss;
use crate::name::Name;
use crate::pattern::Pattern;
use crate::units::{self, CpuPpm, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU64;

/// What `progress` is where MPI calls tell it: no word, since it has a space.
pub const MPI_CALLS: &str = "MPI calls";
/// Most values of one parameter, and most parameters: a grid beyond this is a mistake.
pub const VALUES_MAX: usize = 64;

/// A value for every parameter of an application; two with equal values are one graph-curve's key.
pub type Parameters = BTreeMap<Name, String>;

/// An application file (`apps/NAME.toml`), checked. Two are equal if all that they say is, whoever gave it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "ApplicationFile", into = "ApplicationFile")]
pub struct Application {
    file: ApplicationFile,
    /// The constants that a caller gave ([`Self::with_constant`]). Who reads it back takes all for the file's own.
    given: BTreeSet<Name>,
}

/// An application as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationFile {
    /// Its name.
    pub name: Name,
    /// Program and arguments of one rank; `{parameter}` and `{constant}` are filled in.
    pub command: Vec<String>,
    /// Who talks to whom.
    pub pattern: Pattern,
    /// The numbers of nodes that it can use.
    pub nodes: BTreeSet<u32>,
    /// CPU that each node's process is measured with and promised.
    #[serde(with = "units::text")]
    pub cpu: CpuPpm,
    /// A run that takes longer is ended and its resources given back.
    #[serde(with = "units::text")]
    pub timeout: Nanos,
    /// How the execution time is told.
    pub time: TimeSource,
    /// Once it is told, all that is left is to end: a run that prints nothing for so long then is ended, and counts. For
    /// launchers that hang; nothing = it is waited for.
    #[serde(default, with = "units::text_option", skip_serializing_if = "Option::is_none")]
    pub ends_within: Option<Nanos>,
    /// How it tells how far it is; nothing = it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How much of that a whole run has; nothing = nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// What becomes of a reservation for it when one of its nodes goes away, where the request does not
    /// say it itself.
    #[serde(default)]
    pub on_loss: OnLoss,
    /// Its parameters, the one that matters most to the user first.
    #[serde(default)]
    pub parameters: Vec<Parameter>,
    /// Fixed values for the command template.
    #[serde(default)]
    pub constants: BTreeMap<Name, String>,
}

/// A parameter with the values that it can take, best first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Its name.
    pub name: Name,
    /// Its values, best first.
    pub values: Vec<String>,
}

/// Where a run's execution time is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum TimeSource {
    /// The last line `KEY SECONDS` on the standard output of the run.
    Stdout(String),
    /// From start to end of the run, the launch included.
    Wall,
}

/// How a run tells how far it is, as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid value: something else, expected one word, \"MPI calls\", or { command = \"...\" }"
)]
pub enum Progress {
    /// A line on the standard output of the run that begins with this word is one unit of work done; [`MPI_CALLS`] =
    /// they tell it.
    Told(String),
    /// Another command prints it.
    Printed(Printed),
}

/// A command that prints how far a run is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// For `sh -c`; its last line begins with the units of work that are done in all.
    pub command: String,
}

/// How many units of work a whole run has, as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid value: something else, expected a whole number above 0, or text that becomes one when parameters are filled in"
)]
pub enum Work {
    /// So many.
    Units(NonZeroU64),
    /// As many as this says once `{parameter}` and `{constant}` are filled in.
    Filled(String),
}

/// How a run tells how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressSource<'a> {
    /// By lines on its standard output that begin with this word.
    Lines(&'a str),
    /// By the iterations that its node's agent knows of: `keeptime_progress` tells them, or its collective
    /// operations repeat themselves.
    MpiCalls,
    /// By the number that this command of a shell prints.
    Command(&'a str),
}

impl Application {
    /// Reads and checks an application file.
    ///
    /// # Errors
    /// The first field that is wrong, with its value and what would be accepted.
    pub fn from_toml(text: &str) -> Result<Self, Invalid> {
        let file: ApplicationFile = toml::from_str(text)
            .map_err(|error| Invalid::in_toml("application file", text, &error))?;
        Self::try_from(file)
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.file.name
    }

    /// Who talks to whom.
    pub fn pattern(&self) -> &Pattern {
        &self.file.pattern
    }

    /// The numbers of nodes that it can use, ascending.
    pub fn nodes(&self) -> &BTreeSet<u32> {
        &self.file.nodes
    }

    /// CPU for each node's process.
    pub fn cpu(&self) -> CpuPpm {
        self.file.cpu
    }

    /// The longest that a run may take.
    pub fn timeout(&self) -> Nanos {
        self.file.timeout
    }

    /// A run that has told its time and then prints nothing for so long is ended, and counts; nothing = it is waited for.
    pub fn ends_within(&self) -> Option<Nanos> {
        self.file.ends_within
    }

    /// How the execution time is told.
    pub fn time(&self) -> &TimeSource {
        &self.file.time
    }

    /// How it tells how far it is, if it does.
    pub fn progress_source(&self) -> Option<ProgressSource<'_>> {
        self.file.progress.as_ref().map(|progress| match progress {
            Progress::Told(source) if source == MPI_CALLS => ProgressSource::MpiCalls,
            Progress::Told(word) => ProgressSource::Lines(word),
            Progress::Printed(Printed { command }) => ProgressSource::Command(command),
        })
    }

    /// The word that begins the lines which tell of one unit of work, if lines do.
    pub fn progress(&self) -> Option<&str> {
        match self.progress_source()? {
            ProgressSource::Lines(word) => Some(word),
            ProgressSource::MpiCalls | ProgressSource::Command(_) => None,
        }
    }

    /// How many units of work a whole run with `parameters` has, if that is said.
    ///
    /// # Errors
    /// If what is said is no whole number above 0.
    pub fn work(&self, parameters: &Parameters) -> Result<Option<NonZeroU64>, Invalid> {
        let text = match &self.file.work {
            None => return Ok(None),
            Some(Work::Units(units)) => return Ok(Some(*units)),
            Some(Work::Filled(text)) => self.filled("work", text, parameters)?,
        };
        let units = text.trim().parse();
        units.map(Some).map_err(|_| Invalid::new("work", text, "a whole number above 0"))
    }

    /// What becomes of a reservation for it when one of its nodes goes away.
    pub fn on_loss(&self) -> OnLoss {
        self.file.on_loss
    }

    /// Its parameters, the most important first.
    pub fn parameters(&self) -> &[Parameter] {
        &self.file.parameters
    }

    /// The command template, as it stands in the file.
    pub fn command_template(&self) -> &[String] {
        &self.file.command
    }

    /// The same application with `name = value` among its constants: how the caller says where the
    /// programs and data of this machine are.
    #[must_use]
    pub fn with_constant(mut self, name: Name, value: impl Into<String>) -> Self {
        self.given.insert(name.clone());
        self.file.constants.insert(name, value.into());
        self
    }

    /// What its file says, without what a caller gave: what somebody on another machine, or in another directory, would have
    /// as well.
    #[must_use]
    pub fn as_written(mut self) -> Self {
        let given = std::mem::take(&mut self.given);
        self.file.constants.retain(|name, _| !given.contains(name));
        self
    }

    /// Whether `other` is the same but for what callers gave here: one that was read back has that among its own constants.
    pub fn is_written_as(&self, other: &Self) -> bool {
        let given: BTreeSet<Name> = self.given.union(&other.given).cloned().collect();
        let bare = |app: &Self| Self { given: given.clone(), ..app.clone() }.as_written();
        bare(self) == bare(other)
    }

    /// The constants of the file itself: those that no caller gave.
    pub fn own_constants(&self) -> impl Iterator<Item = (&Name, &String)> {
        self.file.constants.iter().filter(move |(name, _)| !self.given.contains(*name))
    }

    /// The same application with another time limit.
    ///
    /// # Errors
    /// If that is none.
    pub fn with_timeout(self, timeout: Nanos) -> Result<Self, Invalid> {
        let Self { file, given } = self;
        let Self { file, .. } = Self::try_from(ApplicationFile { timeout, ..file })?;
        Ok(Self { file, given })
    }

    /// The parameter called `name`.
    ///
    /// # Errors
    /// Names the parameters that there are.
    pub fn parameter(&self, name: &str) -> Result<&Parameter, Invalid> {
        self.file.parameters.iter().find(|p| p.name.as_str() == name).ok_or_else(|| {
            let known: Vec<_> = self.file.parameters.iter().map(|p| p.name.as_str()).collect();
            Invalid::new(
                "parameter",
                name,
                format!("a parameter of {}: {}", self.file.name, known.join(", ")),
            )
        })
    }

    /// Checks that `parameter` has `value` among its values.
    ///
    /// # Errors
    /// Names the values that there are.
    pub fn check_value(&self, parameter: &str, value: &str) -> Result<(), Invalid> {
        let parameter = self.parameter(parameter)?;
        if parameter.values.iter().any(|v| v == value) {
            return Ok(());
        }
        Err(Invalid::new(parameter.name.as_str(), value, parameter.values.join(", ")))
    }

    /// Every combination of parameter values, the most preferred first.
    pub fn grid(&self) -> Vec<Parameters> {
        let mut grid = vec![Parameters::new()];
        for parameter in &self.file.parameters {
            let extend = |chosen: &Parameters| {
                let chosen = chosen.clone();
                parameter.values.iter().map(move |value| {
                    let mut chosen = chosen.clone();
                    chosen.insert(parameter.name.clone(), value.clone());
                    chosen
                })
            };
            grid = grid.iter().flat_map(extend).collect();
        }
        grid
    }

    /// Whether `parameters` have a value of it for each of its parameters, and nothing else.
    pub fn has(&self, parameters: &Parameters) -> bool {
        let has = |p: &Parameter| parameters.get(&p.name).is_some_and(|v| p.values.contains(v));
        parameters.len() == self.file.parameters.len() && self.file.parameters.iter().all(has)
    }

    /// The rank of `parameters` in the order of preference: for each parameter, the most important
    /// first, the position of its value. Smaller is better; unknown values come last.
    pub fn preference(&self, parameters: &Parameters) -> Vec<usize> {
        let rank = |p: &Parameter| {
            let value = parameters.get(&p.name);
            p.values.iter().position(|v| Some(v) == value).unwrap_or(usize::MAX)
        };
        self.file.parameters.iter().map(rank).collect()
    }

    /// The command of one rank with `parameters` filled in.
    ///
    /// # Errors
    /// If the template names something that is neither a parameter nor a constant.
    pub fn command(&self, parameters: &Parameters) -> Result<Vec<String>, Invalid> {
        let fill = |word: &String| self.filled("command", word, parameters);
        self.file.command.iter().map(fill).collect()
    }

    /// What a field says with `parameters` and constants filled in.
    fn filled(&self, field: &str, text: &str, parameters: &Parameters) -> Result<String, Invalid> {
        expand(field, text, |name| {
            let by_name = |map: &Parameters| {
                map.iter().find(|(n, _)| n.as_str() == name).map(|(_, v)| v.clone())
            };
            by_name(parameters).or_else(|| by_name(&self.file.constants))
        })
    }
}

impl PartialEq for Application {
    fn eq(&self, other: &Self) -> bool {
        self.file == other.file
    }
}

impl Eq for Application {}

impl fmt::Display for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout(key) => write!(f, "stdout {key}"),
            Self::Wall => f.pad("wall"),
        }
    }
}

impl TryFrom<ApplicationFile> for Application {
    type Error = Invalid;

    fn try_from(file: ApplicationFile) -> Result<Self, Invalid> {
        if file.command.first().is_none_or(String::is_empty) {
            return Err(Invalid::new("command", "", "a program and its arguments"));
        }
        if file.nodes.is_empty() {
            return Err(Invalid::new("nodes", "[]", "at least one number of nodes"));
        }
        for nodes in &file.nodes {
            file.pattern.check(*nodes)?;
        }
        if file.cpu == CpuPpm::default() {
            return Err(Invalid::new("cpu", file.cpu, "more than 0 %"));
        }
        if file.timeout == Nanos::default() {
            return Err(Invalid::new("timeout", file.timeout, "more than 0 s"));
        }
        if let TimeSource::Stdout(key) = &file.time {
            check_word("time.stdout", key)?;
        }
        match (file.ends_within, &file.time) {
            (Some(within), _) if within == Nanos::default() => {
                return Err(Invalid::new("ends_within", within, "more than 0 s"));
            }
            (Some(within), TimeSource::Wall) => {
                let expected =
                    "nothing beside time = \"wall\": no line tells that such a run is about to end";
                return Err(Invalid::new("ends_within", within, expected));
            }
            _ => {}
        }
        if let Some(progress) = &file.progress {
            progress.check()?;
        }
        if let Some(work) = &file.work {
            work.check(file.progress.is_some())?;
        }
        check_parameters(&file)?;
        check_template(&file)?;
        Ok(Self { file, given: BTreeSet::new() })
    }
}

impl Progress {
    fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Told(source) if source == MPI_CALLS => Ok(()),
            Self::Told(word) => {
                let expected = format!("one word, {MPI_CALLS:?}, or {{ command = \"...\" }}");
                check_word("progress", word).map_err(|invalid| Invalid { expected, ..invalid })
            }
            Self::Printed(Printed { command }) if command.trim().is_empty() => {
                let expected = "a command that prints how many units of work are done";
                Err(Invalid::new("progress.command", command, expected))
            }
            Self::Printed(_) => Ok(()),
        }
    }
}

impl Work {
    fn check(&self, is_told: bool) -> Result<(), Invalid> {
        if !is_told {
            let expected = "nothing without progress: its units are those that this tells";
            return Err(Invalid::new("work", self, expected));
        }
        match self {
            Self::Units(_) => Ok(()),
            Self::Filled(text) => expand("work", text, |_| Some(String::new())).map(drop),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => units.fmt(f),
            Self::Filled(text) => f.pad(text),
        }
    }
}

impl From<Application> for ApplicationFile {
    fn from(application: Application) -> Self {
        application.file
    }
}

fn check_word(field: &str, word: &str) -> Result<(), Invalid> {
    if word.is_empty() || word.contains(char::is_whitespace) {
        return Err(Invalid::new(field, word, "one word"));
    }
    Ok(())
}

fn check_parameters(file: &ApplicationFile) -> Result<(), Invalid> {
    if file.parameters.len() > VALUES_MAX {
        let expected = format!("at most {VALUES_MAX} parameters");
        return Err(Invalid::new("parameters", file.parameters.len(), expected));
    }
    let mut names = BTreeSet::new();
    for (index, parameter) in file.parameters.iter().enumerate() {
        let field = |part: &str| format!("parameters[{index}].{part}");
        if !names.insert(&parameter.name) {
            return Err(Invalid::new(field("name"), &parameter.name, "a name used once"));
        }
        let distinct: BTreeSet<_> = parameter.values.iter().collect();
        let count = parameter.values.len();
        if distinct.len() != count || !(1..=VALUES_MAX).contains(&count) {
            let expected = format!("1 to {VALUES_MAX} different values");
            return Err(Invalid::new(field("values"), parameter.values.join(", "), expected));
        }
    }
    Ok(())
}

/// Every parameter must reach the command; names that are no parameters may be constants that the
/// caller adds later ([`Application::with_constant`]).
fn check_template(file: &ApplicationFile) -> Result<(), Invalid> {
    let mut used = BTreeSet::new();
    for word in &file.command {
        expand("command", word, |name| {
            used.insert(name.to_string());
            Some(String::new())
        })?;
    }
    match file.parameters.iter().find(|p| !used.contains(p.name.as_str())) {
        None => Ok(()),
        Some(unused) => {
            let expected = format!("{{{}}} somewhere, since it is a parameter", unused.name);
            Err(Invalid::new("command", file.command.join(" "), expected))
        }
    }
}

/// `word` of a field with every `{name}` replaced by what `value` gives for it.
fn expand(
    field: &str,
    word: &str,
    mut value: impl FnMut(&str) -> Option<String>,
) -> Result<String, Invalid> {
    let mut out = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, tail) = after
            .split_once('}')
            .ok_or_else(|| Invalid::new(field, word, "a closing } after {"))?;
        let filled = value(name).ok_or_else(|| {
            Invalid::new(field, word, format!("{{{name}}} to be a parameter or a constant"))
        })?;
        out.push_str(before);
        out.push_str(&filled);
        rest = tail;
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RAYCAST: &str = r#"
        name = "raycast"
        command = ["{bin}/raycast", "--size={size}", "--interleave", "{interleave}"]
        pattern = "hypercube"
        nodes = [2, 4]
        cpu = "20 %"
        timeout = "60 s"
        time = { stdout = "seconds_per_frame" }
        parameters = [{ name = "size", values = ["1024", "512"] },
                      { name = "interleave", values = ["0", "2"] }]
    "#;

    fn raycast() -> Application {
        Application::from_toml(RAYCAST).unwrap()
    }

    #[test]
    fn the_command_is_filled_in() {
        let grid = raycast().grid();
        assert_eq!(grid.len(), 4);
        let app = raycast().with_constant("bin".parse().unwrap(), "/opt");
        let command = app.command(&grid[1]).unwrap();
        assert_eq!(command, ["/opt/raycast", "--size=1024", "--interleave", "2"]);
        let error = raycast().command(&grid[0]).unwrap_err().to_string();
        assert!(error.contains("{bin}"), "{error}");
    }

    // Goal: what a caller says of this machine is told apart from what the file says, and counts as equal all the same.
    #[test]
    fn constants_that_a_caller_gave_are_not_the_files_own() {
        let text = format!("{RAYCAST}[constants]\nframes = \"1\"\n");
        let own = |app: &Application| {
            app.own_constants().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>()
        };
        let file = Application::from_toml(&text).unwrap();
        let app = file.clone().with_constant("bin".parse().unwrap(), "/opt");
        assert_eq!(own(&file), ["frames 1"]);
        assert_eq!(own(&app), ["frames 1"]);
        let longer = app.clone().with_timeout(Nanos::from_secs(90)).unwrap();
        assert_eq!(longer.timeout(), Nanos::from_secs(90));
        assert_eq!(own(&longer), ["frames 1"]);
        assert!(own(&app.clone().with_constant("frames".parse().unwrap(), "9")).is_empty());
        assert_eq!(app.clone().as_written(), file);
        let read: Application = serde_json::from_value(serde_json::json!(app)).unwrap();
        assert!(app.is_written_as(&read) && app.is_written_as(&file) && !read.is_written_as(&file));
        assert!(!app.is_written_as(&raycast()), "the file has a constant more");
        let json = serde_json::to_string(&app).unwrap();
        assert_eq!(serde_json::from_str::<Application>(&json).unwrap(), app);
        assert_eq!(app.with_timeout(Nanos::default()).unwrap_err().field, "timeout");
    }

    #[test]
    fn parameters_are_its_own_if_all_are_there_with_values_that_it_has() {
        let app = raycast();
        assert!(app.grid().iter().all(|parameters| app.has(parameters)));
        let with = |name: &str, value: &str| {
            let mut parameters = app.grid()[0].clone();
            parameters.insert(name.parse().unwrap(), value.into());
            app.has(&parameters)
        };
        assert!(with("size", "512"));
        assert!(!with("size", "77") && !with("more", "1") && !app.has(&Parameters::new()));
    }

    #[test]
    fn a_run_is_waited_for_unless_the_file_says_more() {
        assert_eq!(raycast().ends_within(), None);
        let ending = RAYCAST.replacen("timeout", "ends_within = \"3 s\"\n timeout", 1);
        let ending = Application::from_toml(&ending).unwrap();
        assert_eq!(ending.ends_within(), Some(Nanos::from_secs(3)));
        let read: Application = serde_json::from_value(serde_json::json!(ending)).unwrap();
        assert_eq!(read, ending);
        let told = "time = { stdout = \"seconds_per_frame\" }";
        for (time, within) in [(told, "0 s"), ("time = \"wall\"", "3 s")] {
            let text = RAYCAST.replacen(told, &format!("{time}\nends_within = \"{within}\""), 1);
            let error = Application::from_toml(&text).unwrap_err().to_string();
            assert!(error.contains("ends_within"), "{error}");
        }
    }

    #[test]
    fn a_move_is_offered_unless_the_file_says_more() {
        assert_eq!(raycast().on_loss(), OnLoss::Offer);
        let moving = RAYCAST.replacen("timeout", "on_loss = \"move\"\n timeout", 1);
        let moving = Application::from_toml(&moving).unwrap();
        assert_eq!(moving.on_loss(), OnLoss::Move);
        let text = serde_json::to_string(&moving).unwrap();
        assert_eq!(serde_json::from_str::<Application>(&text).unwrap(), moving);
        // As ledgers have it that are older.
        let text = serde_json::to_string(&raycast()).unwrap().replace("\"on_loss\":\"offer\",", "");
        assert_eq!(serde_json::from_str::<Application>(&text).unwrap(), raycast());
    }

    #[test]
    fn progress_is_told_by_lines_or_by_mpi_calls() {
        let telling = |source: &str| {
            let text = format!("progress = \"{source}\"\n timeout");
            Application::from_toml(&RAYCAST.replacen("timeout", &text, 1)).unwrap()
        };
        assert_eq!(raycast().progress_source(), None);
        let by_lines = telling("frame");
        assert_eq!(by_lines.progress_source(), Some(ProgressSource::Lines("frame")));
        assert_eq!(by_lines.progress(), Some("frame"));
        let by_calls = telling("MPI calls");
        assert_eq!(by_calls.progress_source(), Some(ProgressSource::MpiCalls));
        assert_eq!(by_calls.progress(), None);
        let text = serde_json::to_string(&by_calls).unwrap();
        assert_eq!(serde_json::from_str::<Application>(&text).unwrap(), by_calls);
        // A word that looks like it is one.
        assert_eq!(telling("MPI").progress(), Some("MPI"));
    }

    #[test]
    fn the_work_of_a_run_is_a_number_or_follows_from_its_parameters() {
        let has = |work: &str, size: &str| {
            let text = format!("progress = \"frame\"\n work = {work}\n timeout");
            let application = Application::from_toml(&RAYCAST.replace("timeout", &text)).unwrap();
            let size = ("size".parse().unwrap(), size.to_owned());
            application.work(&Parameters::from([size])).map(|work| work.map(NonZeroU64::get))
        };
        assert_eq!(has("250", "512"), Ok(Some(250)));
        assert_eq!(has("\"{size}0\"", "512"), Ok(Some(5120)));
        assert_eq!(raycast().work(&Parameters::new()), Ok(None));
        for work in ["\"{size}\"", "\"{interleave}\""] {
            let error = has(work, "many").unwrap_err();
            assert_eq!(error.field, "work", "{error}");
        }
    }

    #[test]
    fn progress_is_printed_by_a_command() {
        let text = "progress = { command = \"wc -l < steps\" }\n timeout";
        let printed = Application::from_toml(&RAYCAST.replacen("timeout", text, 1)).unwrap();
        assert_eq!(printed.progress_source(), Some(ProgressSource::Command("wc -l < steps")));
        assert_eq!(printed.progress(), None);
        let text = serde_json::to_string(&printed).unwrap();
        assert_eq!(serde_json::from_str::<Application>(&text).unwrap(), printed);
    }

    #[test]
    fn the_grid_is_in_order_of_preference() {
        let app = raycast();
        let ranks: Vec<_> = app.grid().iter().map(|p| app.preference(p)).collect();
        assert!(ranks.is_sorted());
    }

    #[test]
    fn bad_files_name_field_value_and_what_is_accepted() {
        let cases = [
            ("\"hypercube\"", "\"cube\"", "pattern: \"cube\""),
            ("[2, 4]", "[2, 3]", "nodes: \"3\" is not accepted; expected a power of two"),
            ("[2, 4]", "[]", "nodes"),
            ("\"20 %\"", "\"0 %\"", "cpu: \"0 %\""),
            ("\"60 s\"", "\"60\"", "timeout: \"60\""),
            ("\"1024\", \"512\"", "\"512\", \"512\"", "parameters[0].values"),
            ("\"--size={size}\"", "\"--size=1\"", "{size} somewhere"),
            ("{interleave}", "{interleave", "closing }"),
            ("timeout", "timeoout", "unknown field"),
            ("timeout", "progress = \"an iteration\"\n timeout", "progress: \"an iteration\""),
            ("timeout", "progress = \"mpi calls\"\n timeout", "one word, \"MPI calls\", or"),
            (
                "timeout",
                "progress = 7\n timeout",
                "progress: \"something else\" is not accepted; expected one word",
            ),
            ("timeout", "progress = { command = \" \" }\n timeout", "progress.command: \" \""),
            ("timeout", "progress = { run = \"ls\" }\n timeout", "{ command = \"...\" }"),
            ("timeout", "work = 100\n timeout", "work: \"100\" is not accepted; expected nothing"),
            ("timeout", "progress = \"frame\"\n work = 0\n timeout", "a whole number above 0"),
            ("timeout", "progress = \"frame\"\n work = \"{size\"\n timeout", "work: \"{size\""),
            ("timeout", "on_loss = \"stay\"\n timeout", "on_loss: \"stay\""),
            ("timeout", "on_loss = \"stay\"\n timeout", "expected offer or move"),
        ];
        for (from, to, expected) in cases {
            let error =
                Application::from_toml(&RAYCAST.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }

    #[test]
    fn unknown_parameters_and_values_are_told_with_the_known_ones() {
        let error = raycast().check_value("colour", "red").unwrap_err().to_string();
        assert!(error.contains("size, interleave"), "{error}");
        let error = raycast().check_value("size", "77").unwrap_err().to_string();
        assert!(error.contains("1024, 512"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Application::from_toml(&text);
        }
    }
}
