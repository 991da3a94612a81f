//! The manual pages of the functions and types are made from the header. `KEEPTIME_REWRITE=1 cargo test -p
//! keeptime-fabric-c --test manual` writes them anew.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const HEADER: &str = include_str!("../include/keeptime_fabric.h");

/// What stands between two empty lines of the header.
struct Paragraph {
    whole: &'static str,
    /// What the comment says that it begins with.
    text: String,
    /// What follows that.
    code: &'static str,
}

/// A function as the header has it.
struct Function {
    name: String,
    prototype: String,
    /// What the comment before it says.
    text: String,
}

/// A struct or an enum whose fields the header shows.
struct Type {
    name: String,
    /// It as it stands there, and the constants that are for it.
    declarations: Vec<&'static str>,
    /// What the comment before it says.
    text: String,
}

#[test]
fn manual_pages_say_what_the_header_says() {
    let (functions, types) = (functions(), types());
    let of_functions = functions.iter().map(|function| (&function.name, function.page(&types)));
    let of_types = types.iter().map(|of| (&of.name, of.page(&functions)));
    let wanted: BTreeMap<PathBuf, String> = of_functions
        .chain(of_types)
        .map(|(name, page)| (path(&format!("{name}.3")), page))
        .collect();
    assert!(functions.len() > 35 && types.len() > 10, "{:?}", wanted.keys());
    if std::env::var_os("KEEPTIME_REWRITE").is_some() {
        wanted.iter().for_each(|(path, page)| fs::write(path, page).unwrap());
    }
    for (path, page) in &wanted {
        let found = fs::read_to_string(path).unwrap_or_default();
        assert!(found == *page, "{}: see the first lines of tests/manual.rs", path.display());
    }
    let there = fs::read_dir(path("")).unwrap().map(|entry| entry.unwrap().path());
    let there: BTreeSet<_> = there.filter(|path| path.extension() == Some("3".as_ref())).collect();
    assert_eq!(there, wanted.into_keys().collect(), "pages of what is no more");
}

/// Goal: nothing that the header says of a result is lost. Method: only sentences that are nothing but names, all of which
/// are listed, are left out.
#[test]
fn only_what_is_listed_is_left_out() {
    assert!(is_list_of_results("KTF_GONE, KTF_NO_DAEMON. ") && is_list_of_results("KTF_GONE."));
    for says_more in ["KTF_GONE (also without a region), KTF_SEVERAL.", "KTF_GONE when it is.", ""]
    {
        assert!(!is_list_of_results(says_more), "{says_more}");
    }
}

/// The page by hand says what no function's page says, and names what is there.
#[test]
fn the_overview_names_every_type() {
    let overview = fs::read_to_string(path("keeptime_fabric.7")).unwrap();
    for Type { name, .. } in types() {
        assert!(overview.contains(&format!(".BR {name} (3)")), "{name}");
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(name)
}

fn paragraphs() -> impl Iterator<Item = Paragraph> {
    HEADER.split("\n\n").map(|whole| {
        let whole = whole.trim_matches('\n');
        let comment = whole.strip_prefix("/*").and_then(|rest| rest.split_once("*/"));
        let (comment, code) = comment.unwrap_or(("", whole));
        let words: Vec<_> = comment.lines().map(words).collect();
        Paragraph { whole, text: words.join(" ").trim().to_owned(), code: code.trim_start() }
    })
}

/// A line of a comment without what makes it one.
fn words(line: &str) -> &str {
    line.trim().trim_start_matches(['*', ' '])
}

/// Every function, with the comment that ends on the line before it.
fn functions() -> Vec<Function> {
    let declared = paragraphs().filter(|Paragraph { code, .. }| {
        code.contains("ktf_") && code.ends_with(");") && !code.starts_with(['#', '/'])
    });
    let function = |Paragraph { text, code, .. }: Paragraph| {
        let lines: Vec<_> = code.lines().map(str::trim).collect();
        let prototype = lines.join(" ");
        let (before, _) = prototype.split_once('(').unwrap();
        let name = before.rsplit([' ', '*']).next().unwrap().to_owned();
        Function { name, prototype, text }
    };
    declared.map(function).collect()
}

/// Every type whose fields the header shows. Constants are for one if their names begin with its own, or their comment
/// names it.
fn types() -> Vec<Type> {
    let mut types: Vec<Type> = Vec::new();
    for Paragraph { text, code, .. } in paragraphs() {
        let Some((first, _)) = code.split_once('\n') else { continue };
        let Some(named) = first.strip_prefix("typedef ").and_then(|rest| rest.strip_suffix(" {"))
        else {
            continue;
        };
        let name = named.rsplit(' ').next().unwrap().to_owned();
        types.push(Type { name, declarations: vec![code], text });
    }
    for Paragraph { whole, text, code } in paragraphs() {
        let Some(constant) = code.strip_prefix("#define ") else { continue };
        let is_for = |of: &&mut Type| {
            constant.starts_with(&format!("{}_", of.name.to_uppercase()))
                || text.contains(&format!("{}.", of.name))
        };
        if let Some(of) = types.iter_mut().find(is_for) {
            of.declarations.push(whole);
        }
    }
    types
}

/// What each result means.
fn meanings() -> BTreeMap<&'static str, &'static str> {
    let results = HEADER.split("typedef enum ktf_result {").nth(1).unwrap();
    let results = results.split('}').next().unwrap();
    let meaning = |line: &'static str| {
        let (name, rest) = line.trim().split_once(' ')?;
        let text = rest.split_once("/*")?.1.trim().trim_end_matches("*/").trim();
        Some((name, text))
    };
    results.lines().filter_map(meaning).collect()
}

impl Function {
    fn page(&self, types: &[Type]) -> String {
        let Self { name, prototype, text } = self;
        let mut page = beginning(name, text);
        writeln!(page, ".B {prototype}\n.fi\n.SH DESCRIPTION").unwrap();
        // Results are listed below.
        let sentences = text.split_inclusive(". ").filter(|sentence| !is_list_of_results(sentence));
        writeln!(page, "{}", sentences.collect::<String>().trim()).unwrap();
        if prototype.contains("int64_t timeout") {
            page.push_str(TIMEOUT);
        }
        if prototype.starts_with("ktf_result") {
            page.push_str(&results(text));
        }
        let used = types.iter().filter(|of| prototype.contains(&format!("{} ", of.name)));
        page + &see_also(used.map(|of| &of.name))
    }
}

impl Type {
    fn page(&self, functions: &[Function]) -> String {
        let Self { name, declarations, text } = self;
        let declarations: Vec<_> = declarations.iter().map(|code| verbatim(code)).collect();
        let mut page = beginning(name, text);
        page.push_str(&declarations.join("\n.PP\n"));
        writeln!(page, "\n.fi\n.SH DESCRIPTION\n{text}").unwrap();
        let pointer = format!("{name} *");
        let using = functions.iter().filter(|function| function.prototype.contains(&pointer));
        page + &see_also(using.map(|function| &function.name))
    }
}

const TIMEOUT: &str = "\
.PP
.I timeout
is in nanoseconds.
.BR KTF_NOW ,
which is 0, does not wait, but for what is said above;
.B KTF_FOREVER
and every other negative one waits for ever.
";

/// The first lines of a page, up to what is declared.
fn beginning(name: &str, text: &str) -> String {
    assert!(!text.is_empty(), "{name} has no comment");
    let (first, _) = text.split_once(". ").unwrap_or((text.trim_end_matches('.'), ""));
    let (title, first) = (name.to_uppercase(), lower(first));
    format!(
        ".\\\" Made from include/keeptime_fabric.h by tests/manual.rs.\n\
         .TH {title} 3 \"\" Keeptime \"The fabric\"\n\
         .SH NAME\n{name} \\- {first}\n\
         .SH SYNOPSIS\n.nf\n.B #include <keeptime_fabric.h>\n.PP\n"
    )
}

/// Those that a function's comment names, and the one that none names.
fn results(text: &str) -> String {
    let mut all = ".SH RETURN VALUE\n.TP\n.B KTF_OK\nDone.\n".to_owned();
    let meanings = meanings();
    for (result, meaning) in meanings.iter().filter(|(result, _)| text.contains(**result)) {
        writeln!(all, ".TP\n.B {result}\n{}.", upper(meaning)).unwrap();
    }
    all.push_str(".PP\nUnless it is said above, outputs are set only with\n.BR KTF_OK .\n");
    all.push_str("The sentence for people is that of\n.BR ktf_error_text (3).\n");
    let panic = meanings["KTF_PANIC"];
    writeln!(all, "Any call may end with\n.BR KTF_PANIC :\n{panic}.").unwrap();
    all
}

/// Whether a sentence is nothing but names of results.
fn is_list_of_results(sentence: &str) -> bool {
    let mut words = sentence.trim().trim_end_matches('.').split(", ");
    words.all(|word| word.starts_with("KTF_") && !word.contains(' '))
}

/// What is shown as it is, tabs and all.
fn verbatim(code: &str) -> String {
    let lines: Vec<_> = code.lines().map(spaced).collect();
    lines.join("\n").replace('\\', "\\e").replace('-', "\\-")
}

/// A line with spaces in place of its tabs, which stand eight apart.
fn spaced(line: &str) -> String {
    line.chars().fold(String::new(), |mut line, character| {
        match character {
            '\t' => line.push_str(&" ".repeat(8 - line.chars().count() % 8)),
            character => line.push(character),
        }
        line
    })
}

fn see_also<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let pages: String = names.map(|name| format!(".BR {name} (3),\n")).collect();
    format!(".SH SEE ALSO\n{pages}.BR keeptime_fabric (7)\n")
}

fn lower(text: &str) -> String {
    changed(text, char::to_ascii_lowercase)
}

fn upper(text: &str) -> String {
    changed(text, char::to_ascii_uppercase)
}

fn changed(text: &str, change: impl Fn(&char) -> char) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        std::iter::once(change(&first)).chain(characters).collect()
    })
}
