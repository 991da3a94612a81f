//! Answers of balancers, which end where their connections do. One that comes in small parts is waited for no longer
//! than one that does not come.

use crate::balancer::ANSWER_MAX;
use std::io::{Error, ErrorKind, Read, Result};
use std::time::{Duration, Instant};

/// All that comes `within` that time, which is as long as this may take. `limit` says how long the next part may.
pub(crate) fn whole<S: Read>(
    stream: &mut S,
    within: Duration,
    limit: impl Fn(&S, Duration) -> Result<()>,
) -> Result<Vec<u8>> {
    let deadline = Instant::now() + within;
    let (mut answer, mut part) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        limit(stream, left)?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_MAX {
            // The part that would be missing might be the one that counts.
            let problem = format!("an answer of more than {ANSWER_MAX} bytes");
            return Err(Error::new(ErrorKind::InvalidData, problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread::{self, sleep};

    const LONG: Duration = Duration::from_secs(60);

    fn read(stream: &mut UnixStream, within: Duration) -> Result<Vec<u8>> {
        whole(stream, within, |stream, left| stream.set_read_timeout(Some(left)))
    }

    #[test]
    fn an_answer_is_read_to_its_end_and_no_part_of_one_is_taken_for_it() {
        for length in [0, 1, 300_000, ANSWER_MAX, ANSWER_MAX + 1] {
            let (mut own, mut far) = UnixStream::pair().unwrap();
            // Who is told that it is too much hears no more.
            let writer = thread::spawn(move || drop(far.write_all(&vec![b'x'; length])));
            let answer = read(&mut own, LONG).map(|answer| answer.len()).ok();
            assert_eq!(answer, (length <= ANSWER_MAX).then_some(length));
            drop(own);
            writer.join().unwrap();
        }
    }

    // Goal: whoever says a little all the time holds nobody up. Method: one that goes on for longer than the test may take.
    #[test]
    fn an_answer_that_never_ends_is_not_waited_for() {
        let (mut own, mut far) = UnixStream::pair().unwrap();
        let began = Instant::now();
        thread::spawn(move || {
            while began.elapsed() < 2 * LONG && far.write_all(b"x").is_ok() {
                sleep(Duration::from_millis(2));
            }
        });
        assert!(read(&mut own, Duration::from_millis(50)).is_err());
        assert!(began.elapsed() < LONG);
    }
}
