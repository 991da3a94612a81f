//! Where a run that is held at a rate, or followed, is asked how it stands, and told another rate: a Unix socket in a
//! directory of the user's, one JSON object each way and connection.

use super::steering::State;
use crate::files;
use anyhow::{Context, Result};
use keeptime_agent::lines;
use keeptime_model::Invalid;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::name::Name;
use keeptime_model::reservation::Handle;
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, geteuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufReader};
use std::num::NonZeroU64;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a run is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Asked {
    /// How it stands.
    State,
    /// To run at another part of full speed.
    Set {
        /// Which.
        #[serde(rename = "target_ppm")]
        target: Share,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It stands so now.
    State(Box<RateView>),
    /// A run that is to be done by a time stands so now.
    Course(CourseView),
    /// It stays at its former rate.
    Refused {
        /// Why, in the user's words.
        reason: String,
    },
}

/// A run that is held at a rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RateView {
    /// Its reservation, by the name that it has in what else is printed.
    #[serde(rename = "reservation")]
    pub job: Handle,
    /// What runs.
    pub application: Name,
    /// Where.
    pub nodes: Vec<Name>,
    /// How it stands.
    pub state: State,
    /// It is ended when it has taken so long.
    #[serde(default)]
    pub limit_nanos: Nanos,
    /// What was said to keep its share of the CPU.
    #[serde(default)]
    pub cpu_mechanism: CpuMechanism,
    /// What keeps it, on every node that has told so lately; nothing there: nothing does.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_kept_by: BTreeMap<Name, Option<CpuMechanism>>,
    /// Told to who has set its target: it is not held at that yet, but will be without being asked again. Why not, in the
    /// user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
}

/// A run that is to be done by a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CourseView {
    /// Its reservation, by the name that it has in what else is printed.
    #[serde(rename = "reservation")]
    pub job: Handle,
    /// What runs.
    pub application: Name,
    /// Where.
    pub nodes: Vec<Name>,
    /// By when.
    pub by_unix_nanos: WallTime,
    /// Units of work that are done; nothing if none were told yet.
    pub work: Option<u64>,
    /// Those that there are; nothing if nobody has said that.
    pub work_total: Option<NonZeroU64>,
    /// What it has of each node's CPU.
    pub cpu_ppm: CpuPpm,
    /// Until when.
    pub until_unix_nanos: WallTime,
    /// When it will be done, if it goes on so; nothing while that is not known.
    pub expected_end_unix_nanos: Option<WallTime>,
    /// Why it does not have what it needs, where it asked for that in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl CourseView {
    /// Whether it will not be done by its time with what is held for it, as far as is known.
    pub fn is_short(&self) -> bool {
        self.expected_end_unix_nanos.is_none_or(|end| end > self.by_unix_nanos) || self.is_cut()
    }

    /// Whether what is held for it is over before it will be done.
    pub fn is_cut(&self) -> bool {
        self.expected_end_unix_nanos > Some(self.until_unix_nanos)
    }
}

/// All that are asked.
#[derive(Debug, Default)]
pub struct Views {
    /// Those that are held at a rate.
    pub rates: Vec<RateView>,
    /// Those that are to be done by a time.
    pub courses: Vec<CourseView>,
}

/// Answers until it is dropped.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Answers what is asked about `job` in `directory` by `answer`, one after the other.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn open(
        directory: &Path,
        job: Handle,
        answer: impl Fn(Asked) -> Answer + Send + 'static,
    ) -> Result<Self> {
        files::make_private(directory)?;
        Self::at(socket(directory, job), answer)
    }

    fn at(path: PathBuf, answer: impl Fn(Asked) -> Answer + Send + 'static) -> Result<Self> {
        remove_deserted(&path);
        let listener = UnixListener::bind(&path)
            .and_then(|listener| {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map(|()| listener)
            })
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_closed);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                match stream {
                    // Who asked and went away is told nothing.
                    Ok(stream) => drop(converse(stream, &answer)),
                    // There are no more descriptors; there may be soon.
                    Err(_) => std::thread::sleep(AGAIN_AFTER),
                }
            }
        });
        Ok(Self { path, is_closed, thread: Some(thread) })
    }
}

/// Takes away what a run left that was killed. A broker whose ledger was begun anew gives its handle to another.
fn remove_deserted(path: &Path) {
    let called = UnixStream::connect(path);
    if called.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        // Where it stays, it is said that nobody can listen there.
        let _ = fs::remove_file(path);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // Whoever waits for the next one sees that there is none.
        let woken = UnixStream::connect(&self.path).is_ok();
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn converse(stream: UnixStream, answer: &impl Fn(Asked) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(SAID_WITHIN))?;
    stream.set_write_timeout(Some(SAID_WITHIN))?;
    let mut stream = BufReader::new(stream);
    let Some(line) = lines::next(&mut stream, LINE_BYTES_MAX)? else { return Ok(()) };
    let answer = match serde_json::from_slice(&line) {
        Ok(asked) => answer(asked),
        Err(error) => Answer::Refused { reason: format!("not a request: {error}") },
    };
    lines::say(stream.get_mut(), &answer)
}

/// Asks the run of `job`.
///
/// # Errors
/// If no such run is held at a rate.
pub fn ask(directory: &Path, job: Handle, asked: Asked) -> Result<Answer> {
    match ask_at(&socket(directory, job), asked) {
        // A run that was killed leaves its socket behind.
        Err(error) if is_away(error.kind()) => Err(unknown(directory, job)?.into()),
        answer => answer.with_context(|| format!("the run of {job} does not answer")),
    }
}

fn is_away(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn unknown(directory: &Path, job: Handle) -> Result<Invalid> {
    let running: Vec<_> = views(directory)?.rates.iter().map(|view| view.job.to_string()).collect();
    let expected = match running.as_slice() {
        [] => {
            "a job that `keeptime run --rate` started; there is none of yours on this machine now"
                .to_owned()
        }
        jobs => format!("a job that runs at a rate: {}", jobs.join(", ")),
    };
    Ok(Invalid::new("job", job, expected))
}

/// Every run that answers now; those that end meanwhile are left out.
///
/// # Errors
/// If the directory cannot be read.
pub fn views(directory: &Path) -> Result<Views> {
    let mut views = Views::default();
    for job in jobs(directory)? {
        match ask_at(&socket(directory, job), Asked::State) {
            Ok(Answer::State(view)) => views.rates.push(*view),
            Ok(Answer::Course(view)) => views.courses.push(view),
            _ => {}
        }
    }
    Ok(views)
}

fn jobs(directory: &Path) -> Result<Vec<Handle>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", directory.display()));
        }
    };
    let job = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".sock")?.parse().ok();
    let mut jobs: Vec<Handle> = entries.flatten().filter_map(job).collect();
    jobs.sort_unstable();
    Ok(jobs)
}

fn socket(directory: &Path, job: Handle) -> PathBuf {
    directory.join(format!("{job}.sock"))
}

fn ask_at(path: &Path, asked: Asked) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path)?;
    let answers = Uid::from_raw(getsockopt(&stream, PeerCredentials)?.uid());
    if !answers.is_root() && answers != geteuid() {
        // Whoever has made a directory above this one can put another in its place.
        let what = format!("user {answers} answers at {}", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(SAID_WITHIN))?;
    lines::say(&mut stream, &asked)?;
    lines::hear(&mut BufReader::new(stream), LINE_BYTES_MAX)
}

/// A view of a job on as many nodes as there can be fits.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Who connects says at once what is asked, so that others have their turn.
const SAID_WITHIN: Duration = Duration::from_secs(1);
/// A new rate goes through the broker, which answers within 15 s, and may wait for a correction that
/// is on its way there.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);
/// After it was found that nobody can be let in.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::steering::Phase;
    use std::io::Write;

    fn view() -> RateView {
        let state = State {
            target: Share::from_percent(30).unwrap(),
            phase: Phase::Steered,
            is_adjusting: false,
            is_doubted: false,
            not_held_yet: None,
            actual: Some(0.3),
            full_speed: Some(12.5),
            schedule: None,
            rank_cpu_ppm: Vec::new(),
            refused: 0,
        };
        let nodes = vec!["n1".parse().unwrap()];
        let (job, application) = (Handle::new(7), "bsp".parse().unwrap());
        let (limit_nanos, cpu_mechanism) = (Nanos::from_secs(60), CpuMechanism::Auto);
        let kept = [("n1", Some(CpuMechanism::Deadline)), ("n2", None)];
        let kept = kept.map(|(node, by)| (node.parse().unwrap(), by));
        let cpu_kept_by = BTreeMap::from(kept);
        let follows = None;
        RateView {
            job,
            application,
            nodes,
            state,
            limit_nanos,
            cpu_mechanism,
            cpu_kept_by,
            follows,
        }
    }

    // Goal: what a run of another version says is understood. Method: without what was added later.
    #[test]
    fn a_view_without_what_keeps_its_share_is_understood() {
        let mut text = serde_json::to_value(view()).unwrap();
        let kept = text.as_object_mut().unwrap().remove("cpu_kept_by").unwrap();
        assert_eq!(kept, serde_json::json!({ "n1": "deadline", "n2": null }));
        let older = RateView { cpu_kept_by: BTreeMap::new(), ..view() };
        assert_eq!(serde_json::from_value::<RateView>(text.clone()).unwrap(), older);
        assert_eq!(serde_json::to_value(older).unwrap(), text);
    }

    // Goal: a run is not kept from its place by one that was killed, and keeps nobody from theirs that is there. Method: a
    // socket without a program, as one is left, and then with one.
    #[test]
    fn a_deserted_socket_makes_way_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = socket(directory.path(), Handle::new(7));
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _door = Door::at(path.clone(), |_| Answer::State(Box::new(view()))).unwrap();
        let second = Door::at(path.clone(), |_| Answer::Refused { reason: "second".into() });
        assert!(format!("{:#}", second.unwrap_err()).contains("cannot listen at"));
        assert_eq!(ask_at(&path, Asked::State).unwrap(), Answer::State(Box::new(view())));
    }

    // Goal: runs of both kinds are found, and who looks for one at a rate is not told of others.
    #[test]
    fn all_runs_are_seen_as_what_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let (job, at) = (Handle::new(9), WallTime::from_unix_nanos(5));
        let course = CourseView {
            job,
            application: "solver".parse().unwrap(),
            nodes: Vec::new(),
            by_unix_nanos: at,
            work: None,
            work_total: Some(NonZeroU64::MIN),
            cpu_ppm: CpuPpm::from_percent(15),
            until_unix_nanos: at,
            expected_end_unix_nanos: None,
            refusal: None,
        };
        assert!(course.is_short() && !course.is_cut(), "nothing is known yet");
        let answer = Answer::Course(course.clone());
        let _followed = Door::open(directory.path(), job, move |_| answer.clone()).unwrap();
        let _held =
            Door::open(directory.path(), Handle::new(7), |_| Answer::State(Box::new(view())))
                .unwrap();
        let views = views(directory.path()).unwrap();
        // Both name it as what `keeptime run` prints does.
        let json = serde_json::json!([views.rates[0], views.courses[0]]);
        let named = [0, 1].map(|view| json[view]["reservation"].clone());
        assert_eq!(named, ["r7", "r9"]);
        assert_eq!((views.rates, views.courses), (vec![view()], vec![course]));
        let error = ask(directory.path(), Handle::new(8), Asked::State).unwrap_err();
        assert!(error.to_string().ends_with("a job that runs at a rate: r7"), "{error}");
    }

    #[test]
    fn what_is_asked_is_answered_until_the_run_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = socket(directory.path(), Handle::new(7));
        let door = Door::at(path.clone(), |asked| match asked {
            Asked::State => Answer::State(Box::new(view())),
            Asked::Set { target } => Answer::Refused { reason: format!("no {target}") },
        });
        let door = door.unwrap();
        assert_eq!(ask_at(&path, Asked::State).unwrap(), Answer::State(Box::new(view())));
        let target = Share::from_percent(90).unwrap();
        let refused = Answer::Refused { reason: "no 90 %".into() };
        assert_eq!(ask_at(&path, Asked::Set { target }).unwrap(), refused);
        // Nonsense, and one who says nothing and goes, are in nobody's way.
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"set\": {\"target_ppm\": 2000000}}\n").unwrap();
        let said = lines::next(&mut BufReader::new(stream), LINE_BYTES_MAX).unwrap().unwrap();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("not a request") && said.contains("1000000"), "{said}");
        drop(UnixStream::connect(&path).unwrap());
        assert_eq!(ask_at(&path, Asked::State).unwrap(), Answer::State(Box::new(view())));
        drop(door);
        assert!(!path.exists());
    }
}
