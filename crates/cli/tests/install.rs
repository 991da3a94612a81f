//! What `make install` and `make deb` put on a machine is whole, and `make uninstall` leaves nothing of it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the program of the tests was built.
fn built() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_keeptime")).parent().unwrap()
}

/// Runs a target of the Makefile with what is built, below `stage`.
fn make(target: &str, stage: &Path) {
    let mut make = Command::new("make");
    make.current_dir(root()).args(["-o", "build", target, "PREFIX=/usr"]);
    make.arg(format!("BUILT={}", built().display()));
    let output = make.arg(format!("DESTDIR={}", stage.display())).output().unwrap();
    assert!(output.status.success(), "{target}: {}", String::from_utf8_lossy(&output.stderr));
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// What the Markdown of a page links to, without addresses elsewhere and places in a page.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .filter_map(|target| target.split('#').next().filter(|target| !target.is_empty()))
}

#[test]
fn what_is_installed_is_whole_and_removed_again() {
    let stage = tempfile::tempdir().unwrap();
    make("install", stage.path());
    let usr = stage.path().join("usr");
    let page = fs::read_to_string(usr.join("share/man/man1/keeptime-run.1")).unwrap();
    assert!(page.contains("--within") || page.contains("\\-\\-within"), "{page}");
    for (file, word) in [
        ("bash-completion/completions/keeptime", "keeptime"),
        ("zsh/site-functions/_keeptime", "#compdef keeptime"),
        ("fish/vendor_completions.d/keeptime.fish", "keeptime"),
    ] {
        assert!(fs::read_to_string(usr.join("share").join(file)).unwrap().contains(word), "{file}");
    }
    for unit in files(&usr.join("lib/systemd/system")) {
        let text = fs::read_to_string(&unit).unwrap();
        let documents = text.lines().filter_map(|line| line.strip_prefix("Documentation=file://"));
        let documents: Vec<_> = documents.collect();
        assert!(!documents.is_empty(), "{}", unit.display());
        for document in documents {
            let path = stage.path().join(document.trim_start_matches('/'));
            assert!(path.exists(), "{}: {document}", unit.display());
        }
    }
    make("uninstall", stage.path());
    assert_eq!(files(stage.path()), Vec::<PathBuf>::new());
}

// Links lead on, in the repository and where `make install` puts the documents.
#[test]
fn links_between_documents_lead_somewhere() {
    let stage = tempfile::tempdir().unwrap();
    make("install", stage.path());
    let installed = stage.path().join("usr/share/doc/keeptime");
    // What only the repository has.
    let is_left_out = |target: &str| ["eval/", "workloads/"].iter().any(|at| target.contains(at));
    let mut seen = 0;
    for top in [root(), installed] {
        let is_repository = top.join("Cargo.toml").exists();
        let mut pages = files(&top.join("docs"));
        pages.extend(
            ["README.md", "ARCHITECTURE.md", "HACKING.md", "CHANGELOG.md"]
                .map(|page| top.join(page)),
        );
        for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
            let text = fs::read_to_string(page).unwrap();
            for target in links(&text).filter(|target| is_repository || !is_left_out(target)) {
                assert!(
                    page.parent().unwrap().join(target).exists(),
                    "{}: {target}",
                    page.display()
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen} links");
}

#[test]
fn a_debian_package_has_what_is_installed_and_clears_the_host() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("skipped: no dpkg-deb here");
        return;
    }
    // Where tests are built, libraries stay beside what is made of them.
    let all = tempfile::tempdir().unwrap();
    for file in [
        "keeptime",
        "keeptime-fabricd",
        "deps/libkeeptime_fabric_c.so",
        "deps/libkeeptime_fabric_c.a",
    ] {
        let path = built().join(file);
        if !path.exists() && std::env::var_os("KEEPTIME_IS_BUILT").is_none() {
            eprintln!("skipped: {file} is built with the whole workspace alone");
            return;
        }
        std::os::unix::fs::symlink(&path, all.path().join(path.file_name().unwrap())).unwrap();
    }
    let out = tempfile::tempdir().unwrap();
    let mut script = Command::new(root().join("scripts/deb"));
    let output = script.arg(all.path()).arg(out.path()).arg("-Znone").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let package = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let said = |arguments: &[&str]| {
        let output = Command::new("dpkg-deb").args(arguments).arg(&package).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let contents = said(&["--contents"]);
    for file in ["./usr/bin/keeptime", "./usr/bin/keeptime-fabricd", "/keeptime-agent.service"] {
        assert!(contents.contains(file), "{file}: {contents}");
    }
    assert!(contents.lines().all(|line| line.contains("root/root")), "{contents}");
    let version = said(&["--field"]);
    assert!(version.contains(&format!("Version: {}", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(version.contains("libc6 (>= "), "{version}");
    let mut unpack = Command::new("dpkg-deb");
    let control = out.path().join("control");
    assert!(unpack.arg("--control").arg(&package).arg(&control).status().unwrap().success());
    let before_removal = fs::read_to_string(control.join("prerm")).unwrap();
    assert!(before_removal.contains("keeptime agent clear --config /etc/keeptime/agent.toml"));
}
