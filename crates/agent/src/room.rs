//! Memory for what users say that has not ended yet: nobody fills that of the node with lines that they never end.

use crate::lines;
use crate::seats::{Seat, Seats};
use std::io::{self, BufRead, ErrorKind};
use std::thread;
use std::time::Duration;

/// Each line has so much, and takes as much again wherever it is longer: most are shorter.
const PART_BYTES: u64 = 64 << 10;
/// Of one user, beside the first of each line: 16 MiB.
const PARTS_OF_USER_MAX: usize = 256;
/// Of all together: 64 MiB.
const PARTS_MAX: usize = 1_024;
/// Where there is none, one is waited for: a line that is being said ends within milliseconds.
const TRIES: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(10);

/// What there is for all lines. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    parts: Seats<u32>,
    tries: u32,
}

/// A line, as far as it was said, with what it has taken.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub text: Vec<u8>,
    parts: Vec<Seat<u32>>,
}

impl Default for Room {
    fn default() -> Self {
        Self { parts: Seats::new(PARTS_OF_USER_MAX).at_most(PARTS_MAX), tries: TRIES }
    }
}

impl Room {
    /// As [`lines::go_on`], of a line of this user, or of one who is trusted with all that `most` allows.
    ///
    /// # Errors
    /// As there; [`ErrorKind::InvalidData`] also if there is no room for the rest of the line.
    pub fn go_on(
        &self,
        user: Option<u32>,
        from: &mut impl BufRead,
        line: &mut Line,
        most: u64,
    ) -> io::Result<bool> {
        let Some(user) = user else { return lines::go_on(from, &mut line.text, most) };
        loop {
            let room = PART_BYTES.saturating_mul(1 + line.parts.len() as u64).min(most);
            match lines::go_on(from, &mut line.text, room) {
                Err(error) if error.kind() == ErrorKind::InvalidData && room < most => {
                    line.parts.push(self.part(user)?);
                }
                ended => return ended,
            }
        }
    }

    fn part(&self, user: u32) -> io::Result<Seat<u32>> {
        for _ in 1..self.tries {
            if let Some(part) = self.parts.take(user) {
                return Ok(part);
            }
            thread::sleep(PAUSE);
        }
        self.parts.take(user).ok_or_else(|| {
            let most = PARTS_OF_USER_MAX as u64 * PART_BYTES;
            let told = format!(
                "there is no room for a line of more than {PART_BYTES} bytes: others of yours that have not ended take {most}, or \
                 those of all users four times as much"
            );
            io::Error::new(ErrorKind::InvalidData, told)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    const MOST: u64 = 1 << 20;

    /// A line that does not end, of so many bytes, and what comes of reading it.
    fn begun(room: &Room, user: Option<u32>, bytes: u64) -> (Line, ErrorKind) {
        let (mut line, said) = (Line::default(), vec![b' '; bytes as usize]);
        let read = room.go_on(user, &mut BufReader::new(&said[..]), &mut line, MOST);
        (line, read.unwrap_err().kind())
    }

    // Goal: users who never end what they say take a bounded part of the memory, and keep others' ordinary requests out of
    // nothing. Method: as many long lines as there is room for, of one user and of many.
    #[test]
    fn lines_that_do_not_end_take_so_much_and_no_more() {
        let room = Room { tries: 1, ..Room::default() };
        let long = MOST - 1;
        let of_user = |user| {
            let mut kept = Vec::new();
            loop {
                let (line, ended) = begun(&room, Some(user), long);
                if ended != ErrorKind::UnexpectedEof {
                    assert_eq!(ended, ErrorKind::InvalidData);
                    return kept;
                }
                kept.push(line);
            }
        };
        let users: Vec<_> = (1..=5).map(of_user).collect();
        let bytes = |lines: &Vec<Line>| lines.iter().map(|line| line.text.len() as u64).sum();
        assert_eq!(
            users.iter().map(bytes).collect::<Vec<u64>>(),
            [17 * long, 17 * long, 17 * long, 17 * long, 0]
        );
        assert_eq!(begun(&room, Some(6), PART_BYTES - 1).1, ErrorKind::UnexpectedEof);
        assert_eq!(begun(&room, None, long).1, ErrorKind::UnexpectedEof);
        // What has ended makes room.
        drop(users);
        assert_eq!(begun(&room, Some(5), long).1, ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_line_that_finds_no_room_waits_for_some() {
        let room = Room::default();
        let others: Vec<_> = (0..PARTS_OF_USER_MAX).map(|_| room.part(7).unwrap()).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(2 * PAUSE);
                drop(others);
            });
            let (mut line, mut said) = (Line::default(), vec![b' '; 2 * PART_BYTES as usize]);
            said.push(b'\n');
            assert!(room.go_on(Some(7), &mut &said[..], &mut line, MOST).unwrap());
            assert_eq!(line.text, said);
        });
    }
}
