//! Programs that are run for what they say, and that may hang.

use std::io::{self, ErrorKind, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(2);

/// How `command` ends, and what it says of that. One that has not ended `within` that time is killed, and may have done
/// what it should all the same.
pub(crate) fn run(command: &mut Command, within: Duration) -> io::Result<(ExitStatus, String)> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // Whoever says more than a pipe holds waits until it is heard.
    let listener = child.stderr.take().map(|stderr| thread::spawn(move || all(stderr)));
    let deadline = Instant::now() + within;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(ErrorKind::TimedOut.into());
        }
        sleep(LOOK);
    };
    let said = listener.and_then(|listener| listener.join().ok()).unwrap_or_default();
    Ok((status, String::from_utf8_lossy(&said).into_owned()))
}

/// What comes until the end, or until nothing more can be read.
fn all(mut source: impl Read) -> Vec<u8> {
    let mut said = Vec::new();
    drop(source.read_to_end(&mut said));
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_heard_however_much() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3"]);
        let (status, said) = run(&mut command, Duration::from_secs(60)).unwrap();
        assert_eq!((status.code(), said.len()), (Some(3), 300_000));
    }

    #[test]
    fn a_program_that_hangs_is_not_waited_for() {
        let began = Instant::now();
        let error = run(Command::new("sleep").arg("600"), Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
