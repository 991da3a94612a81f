//! A bare ring between two cores: slots with a number each, nothing else. What moving bytes through
//! caches costs.

use super::{CORES, WARM_UP, micros, pin};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::thread::{self, JoinHandle};
use std::time::Instant;

const SLOTS: usize = 16;
const MOST: usize = 8192;

/// The number of the message that it holds, then its length, then the message.
#[repr(C, align(64))]
struct Slot {
    number: AtomicU64,
    data: UnsafeCell<(usize, [u8; MOST])>,
}

struct Ring(Vec<Slot>);

// SAFETY: a slot is written before its number is, and read after; with one message under way
// at a time it is not written again before it was read.
unsafe impl Sync for Ring {}

/// Both rings, and the thread on the other core that answers.
pub struct Bare {
    there: Arc<Ring>,
    back: Arc<Ring>,
    stop: Arc<AtomicBool>,
    number: u64,
    thread: Option<JoinHandle<()>>,
}

impl Ring {
    fn new() -> Arc<Self> {
        let slot = || Slot { number: AtomicU64::new(0), data: UnsafeCell::new((0, [0; MOST])) };
        Arc::new(Self((0..SLOTS).map(|_| slot()).collect()))
    }

    fn write(&self, number: u64, bytes: &[u8]) {
        let slot = &self.0[number as usize % SLOTS];
        // SAFETY: the reader has read what was here, or there was nothing.
        let data = unsafe { &mut *slot.data.get() };
        data.0 = bytes.len();
        data.1[..bytes.len()].copy_from_slice(bytes);
        slot.number.store(number, Release);
    }

    /// Copies the message out; none if `give_up`.
    fn read(&self, number: u64, into: &mut Vec<u8>, give_up: impl Fn() -> bool) -> bool {
        let slot = &self.0[number as usize % SLOTS];
        while slot.number.load(Acquire) != number {
            if give_up() {
                return false;
            }
            std::hint::spin_loop();
        }
        // SAFETY: the writer has written it and does not come back before it has an answer.
        let data = unsafe { &*slot.data.get() };
        into.clear();
        into.extend_from_slice(&data.1[..data.0]);
        true
    }
}

impl Bare {
    pub fn start() -> Self {
        let (there, back) = (Ring::new(), Ring::new());
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = (there.clone(), back.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let (there, back, stop) = of_thread;
            if let Err(error) = pin(CORES[1]) {
                eprintln!("keeptime-bench: {error:#}");
            }
            let (mut number, mut data) = (0, Vec::new());
            while there.read(number + 1, &mut data, || stop.load(Relaxed)) {
                number += 1;
                back.write(number, &data);
            }
        });
        Self { there, back, stop, number: 0, thread: Some(thread) }
    }

    pub fn round_trips(&mut self, size: usize, count: usize) -> f64 {
        let (data, mut answer) = (vec![7; size], Vec::new());
        self.echo(&data, &mut answer, WARM_UP);
        let start = Instant::now();
        self.echo(&data, &mut answer, count);
        micros(start, count)
    }

    fn echo(&mut self, data: &[u8], answer: &mut Vec<u8>, count: usize) {
        for _ in 0..count {
            self.number += 1;
            self.there.write(self.number, data);
            self.back.read(self.number, answer, || false);
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
