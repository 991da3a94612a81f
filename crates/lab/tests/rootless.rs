//! Labs of ordinary users: all but the share of the CPU works, and that is said.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HAND, World, leftovers, output, wait_for};
use keeptime_lab::{Exec, LabState};
use keeptime_linux::testing::skip;
use keeptime_model::name::Name;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

const NOBODY: u32 = 65_534;

/// Runs the tests' program as an ordinary user.
fn as_nobody(words: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new(HAND);
    command.args(words).current_dir("/").env_remove("XDG_RUNTIME_DIR");
    if nix::unistd::geteuid().is_root() {
        // With the user, the standard library drops root's other groups.
        command.gid(NOBODY).uid(NOBODY);
    }
    command.output()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

/// The reason why an ordinary user cannot have a lab on this machine.
fn obstacle() -> Option<String> {
    match as_nobody(&["compute", "1"]) {
        Err(error) => return Some(format!("{HAND} cannot be run by an ordinary user: {error}")),
        Ok(output) if !output.status.success() => return Some(text(&output.stderr)),
        Ok(_) => {}
    }
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").ok()?;
    (limit.trim() == "0").then(|| "user.max_user_namespaces is 0".to_owned())
}

/// A directory that ordinary users can write to.
fn directory_for_all() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    directory
}

/// Removes the lab also when the test fails.
struct Down<'a>(&'a str, &'a Name);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let _ = as_nobody(&["down", self.0, self.1.as_str()]);
    }
}

#[test]
fn an_ordinary_user_gets_nodes_links_and_programs() {
    if let Some(reason) = obstacle() {
        return skip(&["userns".to_owned()], &reason);
    }
    let directory = directory_for_all();
    let runtime = directory.path().join("run");
    let runtime = runtime.to_str().unwrap();
    let name: Name = format!("nobody-{}", std::process::id()).parse().unwrap();

    let _down = Down(runtime, &name);
    let up = as_nobody(&["up", runtime, name.as_str(), "3", "10 %"]).unwrap();
    if !up.status.success() && text(&up.stderr).contains("user namespace") {
        return skip(&["userns".to_owned()], &text(&up.stderr));
    }
    assert!(up.status.success(), "{}", text(&up.stderr));
    let told = text(&up.stdout);
    println!("{told}");
    assert!(told.contains("shares of the CPU"), "{told}");
    let count = told.lines().count();
    let own = ["own /proc", "own /sys", "own /etc/hosts"]
        .iter()
        .filter(|what| told.contains(*what))
        .count();
    assert_eq!(count - own, 2, "the CPU, and classes of single flows: {told}");

    let exec = |node: &str, line: &str| {
        let output = as_nobody(&["exec", runtime, name.as_str(), node, "shell", line]).unwrap();
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(exec("n2", "hostname; id -u; exit 3"), (Some(3), "n2\n0".into()));
    assert_eq!(exec("n1", "cat /sys/class/net/eth0/operstate").1, "up");
    // Two nodes talk, at the rate of the link: 5 MB at 200 Mbit/s take 0.21 s.
    let receive = "exec bash -c 'cat < /dev/tcp/n3/7 > /tmp/got; stat -c %s /tmp/got'";
    let send = "exec python3 -c 'import socket; s = socket.create_server((\"\", 7)); \
                c, _ = s.accept(); c.sendall(bytes(5000000))'";
    let has_programs = exec("n1", "command -v bash && command -v python3").0 == Some(0);
    if has_programs {
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| exec("n3", send));
            let start = std::time::Instant::now();
            let mut got = (None, String::new());
            wait_for("the sender", || {
                got = exec("n1", receive);
                got.1 == "5000000"
            });
            println!("5 MB in at most {:?}", start.elapsed());
            assert!(start.elapsed().as_secs_f64() > 0.19, "faster than the link");
            assert_eq!(sender.join().unwrap().0, Some(0));
        });
    }
    let down = as_nobody(&["down", runtime, name.as_str()]).unwrap();
    assert!(down.status.success(), "{}", text(&down.stderr));
    wait_for("all processes", || leftovers(runtime.as_ref(), &name).is_empty());
}

// Whoever makes a lab without a name has one called as everybody else's. Root's has groups of that name, and is left alone.
#[test]
fn a_user_has_a_lab_of_the_name_of_one_of_roots() {
    if let Some(reason) = obstacle() {
        return skip(&["userns".to_owned()], &reason);
    }
    let Some(world) = World::new() else { return };
    let of_root = world.up(1, 5);
    let name = of_root.name();
    let directory = directory_for_all();
    let runtime = directory.path().join("run");
    let runtime = runtime.to_str().unwrap();

    let down_at_the_end = Down(runtime, name);
    let up = as_nobody(&["up", runtime, name.as_str(), "1", "10 %"]).unwrap();
    if !up.status.success() && text(&up.stderr).contains("user namespace") {
        return skip(&["userns".to_owned()], &text(&up.stderr));
    }
    assert!(up.status.success(), "{}", text(&up.stderr));
    let exec = as_nobody(&["exec", runtime, name.as_str(), "n1", "shell", "hostname"]).unwrap();
    assert_eq!(text(&exec.stdout), "n1", "{}", text(&exec.stderr));
    let down = as_nobody(&["down", runtime, name.as_str()]).unwrap();
    assert!(down.status.success(), "{}", text(&down.stderr));
    drop(down_at_the_end);

    assert_eq!(of_root.status().state, LabState::Up);
    assert!(of_root.status().nodes[0].cpu_nanos.is_some(), "its group is gone");
    assert_eq!(output(&of_root, Exec::shell("n1", ["hostname"])).1, "n1");
    world.down(&of_root);
}
