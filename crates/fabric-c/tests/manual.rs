//! The manual pages of the functions are made from the header. `KEEPTIME_REWRITE=1 cargo test -p
//! keeptime-fabric-c --test manual` writes them anew.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const HEADER: &str = include_str!("../include/keeptime_fabric.h");

/// A function as the header has it.
struct Function {
    name: String,
    prototype: String,
    /// What the comment before it says.
    text: String,
}

#[test]
fn manual_pages_say_what_the_header_says() {
    let meanings = meanings();
    let wanted: BTreeMap<PathBuf, String> = functions()
        .iter()
        .map(|function| (path(&format!("{}.3", function.name)), page(function, &meanings)))
        .collect();
    assert!(wanted.len() > 25, "{:?}", wanted.keys());
    if std::env::var_os("KEEPTIME_REWRITE").is_some() {
        wanted.iter().for_each(|(path, page)| fs::write(path, page).unwrap());
    }
    for (path, page) in &wanted {
        let found = fs::read_to_string(path).unwrap_or_default();
        assert!(found == *page, "{}: see the first lines of tests/manual.rs", path.display());
    }
    let there = fs::read_dir(path("")).unwrap().map(|entry| entry.unwrap().path());
    let there: BTreeSet<_> = there.filter(|path| path.extension() == Some("3".as_ref())).collect();
    assert_eq!(there, wanted.into_keys().collect(), "pages of functions that are no more");
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(name)
}

/// Every function, with the comment that ends on the line before it.
fn functions() -> Vec<Function> {
    let mut functions = Vec::new();
    let mut comment = String::new();
    let mut lines = HEADER.lines();
    while let Some(line) = lines.next() {
        if let Some(first) = line.strip_prefix("/*") {
            comment = words(first);
            let mut line = line;
            while !line.contains("*/") {
                line = lines.next().unwrap();
                comment = format!("{comment} {}", words(line));
            }
        } else if line.is_empty() {
            comment.clear();
        } else if line.contains('(') && line.contains("ktf_") {
            let mut prototype = line.to_owned();
            while !prototype.ends_with(");") {
                prototype = format!("{prototype} {}", lines.next().unwrap().trim());
            }
            let before = prototype.split_once('(').unwrap().0;
            let name = before.rsplit([' ', '*']).next().unwrap().to_owned();
            functions.push(Function { name, prototype, text: comment.trim().to_owned() });
        }
    }
    functions
}

/// A line of a comment without what makes it one.
fn words(line: &str) -> String {
    let line = line.trim().trim_start_matches(['*', ' ']).trim_end_matches("*/");
    line.trim().to_owned()
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

fn page(function: &Function, meanings: &BTreeMap<&str, &str>) -> String {
    let Function { name, prototype, text } = function;
    assert!(!text.is_empty(), "{name} has no comment");
    let (first, _) = text.split_once(". ").unwrap_or((text.trim_end_matches('.'), ""));
    let mut page = String::new();
    let mut put = |line: &str| writeln!(page, "{line}").unwrap();
    put(".\\\" Made from include/keeptime_fabric.h by tests/manual.rs.");
    put(&format!(".TH {} 3 \"\" Keeptime \"The fabric\"", name.to_uppercase()));
    put(".SH NAME");
    put(&format!("{name} \\- {}", lower(first)));
    put(".SH SYNOPSIS\n.nf\n.B #include <keeptime_fabric.h>\n.PP");
    put(&format!(".B {prototype}\n.fi"));
    put(".SH DESCRIPTION");
    // Results are listed below; the sentence that only names them says nothing more.
    let results: Vec<_> = meanings.keys().filter(|result| text.contains(**result)).collect();
    let sentences = text.split_inclusive(". ").filter(|sentence| {
        !sentence.trim_start().starts_with("KTF_") || sentence.contains(" when ")
    });
    put(sentences.collect::<String>().trim());
    if prototype.starts_with("ktf_result") {
        put(".SH RETURN VALUE");
        put(".TP\n.B KTF_OK\nDone.");
        for result in results {
            put(&format!(".TP\n.B {result}\n{}.", upper(meanings[*result])));
        }
        put(
            ".PP\nUnless it is said above, outputs are set only with\n.BR KTF_OK .\nThe sentence for people is that of\n.BR ktf_error_text (3).",
        );
    }
    put(".SH SEE ALSO\n.BR keeptime_fabric (7)");
    page
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
