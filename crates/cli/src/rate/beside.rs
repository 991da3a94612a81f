//! What goes on beside a run, in a thread of its own: its lines are counted, it is asked at its door how it stands, and both
//! end with it.

use super::door::Door;
use super::inbox::Inbox;
use super::lines::Lines;
use std::thread::JoinHandle;

/// Goes on until it is dropped.
#[derive(Debug)]
pub struct Beside<V> {
    inbox: Inbox,
    lines: Lines,
    door: Option<Door>,
    /// Tells at its end how the run stood.
    thread: Option<JoinHandle<V>>,
}

impl<V> Beside<V> {
    /// The thread ends when `inbox` says that the run has ended.
    pub fn new(inbox: Inbox, lines: Lines, door: Door, thread: JoinHandle<V>) -> Self {
        Self { inbox, lines, door: Some(door), thread: Some(thread) }
    }

    /// Takes a line of the run's output.
    pub fn line(&mut self, line: &str) {
        self.lines.line(line);
    }

    /// The run has ended, and so has the thread when this returns. How it stood; nothing if that was told before.
    pub fn end(&mut self) -> Option<V> {
        // First: whoever is still asking at the door waits for no answer then.
        self.inbox.end();
        drop(self.door.take());
        self.thread.take()?.join().ok()
    }
}

impl<V> Drop for Beside<V> {
    fn drop(&mut self) {
        self.end();
    }
}
