//! What `make install` and `make deb` put on a machine is whole, and `make uninstall` leaves nothing of it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the program of the tests was built.
fn built() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_keeptime")).parent().unwrap()
}

/// A command that makes files which others may not read, as careful administrators have it.
fn by_the_careful(program: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 027 && exec \"$0\" \"$@\""]).arg(program);
    shell
}

/// Runs a target of the Makefile with what is built, below `stage`.
fn make(target: &str, stage: &Path) {
    let mut make = by_the_careful(Path::new("make"));
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
    for file in files(stage.path()) {
        // Directories too: what is in them could not be looked at.
        for path in file.ancestors().take_while(|path| *path != stage.path()) {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            let read = if path.is_dir() { 0o055 } else { 0o044 };
            assert_eq!(mode & read, read, "{}: {mode:o}", path.display());
        }
    }
    let page = fs::read_to_string(usr.join("share/man/man1/keeptime-run.1")).unwrap();
    assert!(page.contains("--within") || page.contains("\\-\\-within"), "{page}");
    // Where each looks that is the distribution's.
    let is_debian = Path::new("/etc/debian_version").exists();
    let zsh = ["zsh/site-functions/_keeptime", "zsh/vendor-completions/_keeptime"];
    let zsh = zsh[usize::from(is_debian)];
    for (file, word) in [
        ("bash-completion/completions/keeptime", "keeptime"),
        (zsh, "#compdef keeptime"),
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
    let make = || {
        let mut script = by_the_careful(&root().join("scripts/deb"));
        let output = script.arg(all.path()).arg(out.path()).arg("-Znone").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    };
    let package = make();
    // What is made first takes longer than a second, and files have other times then.
    let first = fs::read(&package).unwrap();
    assert!(fs::read(make()).unwrap() == first, "the same programs make another package");
    let said = |arguments: &[&str]| {
        let output = Command::new("dpkg-deb").args(arguments).arg(&package).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let contents = said(&["--contents"]);
    for file in [
        "./usr/bin/keeptime",
        "./usr/bin/keeptime-fabricd",
        "/keeptime-agent.service",
        "/man1/keeptime-run.1.gz",
        "/man1/keeptime-fabricd.1.gz",
        "/doc/keeptime/examples/ktf_ping.c",
    ] {
        assert!(contents.contains(file), "{file}: {contents}");
    }
    let unpacked = out.path().join("unpacked");
    let mut unpack = Command::new("dpkg-deb");
    assert!(unpack.arg("--extract").arg(&package).arg(&unpacked).status().unwrap().success());
    let document = |name| fs::read_to_string(unpacked.join("usr/share/doc/keeptime").join(name));
    let copyright = document("copyright").unwrap();
    let mit = fs::read_to_string(root().join("LICENSE-MIT")).unwrap();
    assert!(copyright.contains("Apache-2.0") && copyright.ends_with(&mit), "{copyright}");
    // One in the programs, one of the ledger alone, and one whose parts have a licence of their own.
    let others = document("LICENSE-THIRD-PARTY").unwrap();
    for text in ["\nclap ", "\nrusqlite ", "\nring ", "The fiat-crypto authors"] {
        assert!(others.to_lowercase().contains(&text.to_lowercase()), "{text}: {others}");
    }
    assert!(!others.contains("\nkeeptime"), "{others}");
    assert!(contents.lines().all(|line| line.contains("root/root")), "{contents}");
    let is_everybodys = |line: &str| match line.as_bytes() {
        [b'l', ..] => true,
        mode => mode.get(4) == Some(&b'r') && mode.get(7) == Some(&b'r'),
    };
    assert!(contents.lines().all(is_everybodys), "{contents}");
    let version = said(&["--field"]);
    assert!(version.contains(&format!("Version: {}", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(version.contains("libc6 (>= "), "{version}");
    // It makes the broker's user.
    assert!(version.contains("systemd | "), "{version}");
    let mut unpack = Command::new("dpkg-deb");
    let control = out.path().join("control");
    assert!(unpack.arg("--control").arg(&package).arg(&control).status().unwrap().success());
    // A call in a script would be made while the library is there twice, in an upgrade.
    let triggers = fs::read_to_string(control.join("triggers")).unwrap();
    assert_eq!(triggers, "activate-noawait ldconfig\n");
    let before_removal = fs::read_to_string(control.join("prerm")).unwrap();
    assert!(before_removal.contains("keeptime agent clear --config /etc/keeptime/agent.toml"));
}

/// How the package's script before its removal ends, and what it calls, where the agent is in this `state`, or in an
/// `image`, and `keeptime agent clear` ends with this `code`.
fn removed(state: &str, code: i32) -> (Option<i32>, Vec<String>) {
    removed_beside(None, state, code)
}

/// The same where Slurm has such a line about plugins.
fn removed_beside(plugin: Option<&str>, state: &str, code: i32) -> (Option<i32>, Vec<String>) {
    let script = fs::read_to_string(root().join("scripts/deb")).unwrap();
    let (_, script) = script.split_once("DEBIAN/prerm\" <<'END'\n").unwrap();
    let (script, _) = script.split_once("\nEND\n").unwrap();
    let host = tempfile::tempdir().unwrap();
    let at = |name: &str| host.path().join(name);
    fs::write(at("agent.toml"), "").unwrap();
    fs::write(at("calls"), "").unwrap();
    if let Some(line) = plugin {
        fs::create_dir(at("slurm")).unwrap();
        fs::write(at("slurm/plugstack.conf"), format!("# Plugins.\n{line}\n")).unwrap();
    }
    let systemd = if state == "image" { at("not-there") } else { host.path().to_owned() };
    let script = script
        .replace("/run/systemd/system", &systemd.display().to_string())
        .replace("/etc/slurm", &at("slurm").display().to_string())
        .replace("/etc/keeptime/agent.toml", &at("agent.toml").display().to_string());
    fs::write(at("prerm"), script).unwrap();
    let told = format!("echo \"${{0##*/}} $*\" >>{}", at("calls").display());
    let systemctl = format!("#!/bin/sh\n[ $1 = is-active ] && echo {state} && exit 3\n{told}\n");
    let keeptime = format!("#!/bin/sh\n{told}\nexit {code}\n");
    for (name, text) in [("systemctl", systemctl), ("keeptime", keeptime)] {
        // By a shell: a file that is open here for writing may be so in what another test starts just then, and cannot be
        // run as long as it is.
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod +x \"$0\""]).arg(at(name)).arg(text);
        assert!(shell.status().unwrap().success());
    }
    let mut script = Command::new("sh");
    script.arg(at("prerm")).arg("remove");
    let path = format!("{}:/usr/bin:/bin", host.path().display());
    let ended = script.env("PATH", path).status().unwrap();
    let calls = fs::read_to_string(at("calls")).unwrap();
    // Without where the configuration is.
    let words = |line: &str| line.split(" --config").next().unwrap_or_default().to_owned();
    (ended.code(), calls.lines().map(words).collect())
}

// Goal: a removal that is refused since jobs are enforced leaves the node in service. Method: what the package's script calls,
// by names that write it down.
#[test]
fn a_package_whose_removal_is_refused_goes_on() {
    let [stop, clear] = ["systemctl stop keeptime-agent", "keeptime agent clear"];
    let start = "systemctl start keeptime-agent";
    let end = "systemctl disable --now keeptime-broker keeptime-agent keeptime-fabricd";
    let of = |calls: &[&str]| calls.iter().map(ToString::to_string).collect::<Vec<_>>();
    for state in ["active", "activating"] {
        assert_eq!(removed(state, 0), (Some(0), of(&[stop, clear, end])), "{state}");
        assert_eq!(removed(state, 1), (Some(1), of(&[stop, clear, start])), "{state}");
        assert_eq!(removed(state, 64), (Some(1), of(&[stop, clear, start])), "{state}");
    }
    // Where Slurm requires a plugin that is not there it starts nothing any more.
    let plugin = "required /usr/lib/keeptime/slurm/keeptime.so keeptime=/usr/bin/keeptime";
    assert_eq!(removed_beside(Some(plugin), "active", 0), (Some(1), of(&[])));
    let left_out = format!("#{plugin}");
    let done = (Some(0), of(&[stop, clear, end]));
    assert_eq!(removed_beside(Some(&left_out), "active", 0), done);
    assert_eq!(removed("inactive", 0), (Some(0), of(&[clear, end])));
    assert_eq!(removed("inactive", 1), (Some(1), of(&[clear])));
    // There is nothing to clear but what belongs to the machine that makes the image.
    assert_eq!(removed("image", 1), (Some(0), of(&[end])));
}
