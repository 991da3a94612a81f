//! What became of a call: a number for programs, a sentence for people, and no panic.

use fabric::attributes::InvalidAttributes;
use fabric::region::{InvalidLayout, PublishError, RegionError};
use fabric::{
    FindError, Invalid, OpenError, RecvError, RegisterError, SendError, Undelivered, Unsent,
};
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ktf_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    Ok = 0,
    Invalid = 1,
    NoDaemon = 2,
    NotFound = 3,
    Several = 4,
    Gone = 5,
    Unreachable = 6,
    TooLong = 7,
    TimedOut = 8,
    Broken = 9,
    Undelivered = 10,
    NotAllowed = 11,
    Unfinished = 12,
    Unconfirmed = 13,
    System = 14,
    Panic = 15,
    NoRoom = 16,
}

/// Why a call did not do what it was to.
pub struct Failure {
    outcome: Outcome,
    text: String,
    /// Which message did not arrive.
    pub undelivered: Option<Undelivered>,
}

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Failure {
    /// An argument that cannot be.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self { outcome: Outcome::Invalid, text: text.into(), undelivered: None }
    }

    fn of(outcome: Outcome, error: &dyn Error) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self { outcome, text, undelivered: None }
    }

    fn tell(self) -> Outcome {
        // What a thread ends last, such as an object of C++ that closes something, may call when this is gone already.
        let _ = LAST.try_with(|last| last.replace(self.text));
        self.outcome
    }
}

/// Does `call`, and tells what became of it.
pub fn outcome_of(call: impl FnOnce() -> Result<(), Failure>) -> Outcome {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Outcome::Ok,
        Ok(Err(failure)) => failure.tell(),
        Err(_) => {
            let text = "a bug of the library; its message is on the standard error output".into();
            Failure { outcome: Outcome::Panic, text, undelivered: None }.tell()
        }
    }
}

/// Drops what a handle holds.
pub unsafe fn drop_handle<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller says that it is a handle that was given out, and its last use.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(handle) })));
        // There is no result to tell it by; the panic itself has been printed.
        drop(dropped);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_error_text(buffer: *mut c_char, length: usize) -> usize {
    // SAFETY: the caller says that there are `length` bytes.
    let copy = |text: &str| unsafe { copy_text(text, buffer, length) };
    LAST.try_with(|last| copy(&last.borrow())).unwrap_or_else(|_| copy(""))
}

/// The names of all, by number.
const NAMES: [&CStr; 17] = [
    c"KTF_OK",
    c"KTF_INVALID",
    c"KTF_NO_DAEMON",
    c"KTF_NOT_FOUND",
    c"KTF_SEVERAL",
    c"KTF_GONE",
    c"KTF_UNREACHABLE",
    c"KTF_TOO_LONG",
    c"KTF_TIMED_OUT",
    c"KTF_BROKEN",
    c"KTF_UNDELIVERED",
    c"KTF_NOT_ALLOWED",
    c"KTF_UNFINISHED",
    c"KTF_UNCONFIRMED",
    c"KTF_SYSTEM",
    c"KTF_PANIC",
    c"KTF_NO_ROOM",
];

#[unsafe(no_mangle)]
pub extern "C" fn ktf_result_name(result: u32) -> *const c_char {
    NAMES.get(result as usize).copied().unwrap_or(c"unknown").as_ptr()
}

/// Writes as much of `text` as there is room for, each character whole or not at all, and a zero byte. Returns how long
/// all of it is.
pub unsafe fn copy_text(text: &str, buffer: *mut c_char, length: usize) -> usize {
    if !buffer.is_null() && length > 0 {
        let copied = text.floor_char_boundary(length - 1);
        // SAFETY: as the header says.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), copied);
            *buffer.add(copied) = 0;
        }
    }
    text.len()
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let outcome = match error {
            OpenError::Directory(_) => Outcome::NoDaemon,
            OpenError::NotBuiltIn { .. }
            | OpenError::NoNetwork { .. }
            | OpenError::Environment { .. } => Outcome::Invalid,
            _ => Outcome::System,
        };
        Self::of(outcome, &error)
    }
}

impl From<InvalidAttributes> for Failure {
    fn from(error: InvalidAttributes) -> Self {
        let outcome = match error {
            InvalidAttributes::TooMany { .. } | InvalidAttributes::TooLong { .. } => {
                Outcome::TooLong
            }
            _ => Outcome::Invalid,
        };
        Self::of(outcome, &error)
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Attributes(invalid) => invalid.into(),
            RegisterError::TooMany => Self::of(Outcome::TooLong, &error),
            _ => Self::of(Outcome::NoDaemon, &error),
        }
    }
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        let outcome = match error {
            FindError::None(_) => Outcome::NotFound,
            FindError::Several { .. } => Outcome::Several,
            _ => Outcome::NoDaemon,
        };
        Self::of(outcome, &error)
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let outcome = match &error {
            SendError::Gone(_) | SendError::NoContext(_) => Outcome::Gone,
            SendError::Unreachable { .. } => Outcome::Unreachable,
            SendError::TooLong { .. } => Outcome::TooLong,
            SendError::Rejected(fabric::Reason::Gone) => Outcome::Gone,
            SendError::Rejected(fabric::Reason::TooLong) => Outcome::TooLong,
            SendError::Rejected(fabric::Reason::NoRoom { .. }) => Outcome::NoRoom,
            SendError::WouldBlock | SendError::TimedOut => Outcome::TimedOut,
            SendError::Directory(_) => Outcome::NoDaemon,
            _ => Outcome::Broken,
        };
        Self::of(outcome, &error)
    }
}

impl From<RecvError> for Failure {
    fn from(error: RecvError) -> Self {
        let outcome = match &error {
            RecvError::Undelivered(_) => Outcome::Undelivered,
            RecvError::Gone(_) => Outcome::Gone,
            _ => Outcome::TimedOut,
        };
        let undelivered = match &error {
            RecvError::Undelivered(undelivered) => Some(undelivered.clone()),
            _ => None,
        };
        Self { undelivered, ..Self::of(outcome, &error) }
    }
}

impl From<Unsent> for Failure {
    fn from(error: Unsent) -> Self {
        Self::of(Outcome::Undelivered, &error)
    }
}

impl From<Invalid> for Failure {
    fn from(error: Invalid) -> Self {
        Self::of(Outcome::Invalid, &error)
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Register(error) => error.into(),
            error => Self::of(Outcome::NoDaemon, &error),
        }
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        let outcome = match &error {
            RegionError::NoRegion(_) => Outcome::NotFound,
            RegionError::Gone(_) => Outcome::Gone,
            RegionError::NotAllowed => Outcome::NotAllowed,
            RegionError::Unfinished { .. } => Outcome::Unfinished,
            RegionError::Unreachable { .. } => Outcome::Unreachable,
            RegionError::Unconfirmed => Outcome::Unconfirmed,
            _ => Outcome::Invalid,
        };
        Self::of(outcome, &error)
    }
}

impl From<InvalidLayout> for Failure {
    fn from(error: InvalidLayout) -> Self {
        Self::of(Outcome::Invalid, &error)
    }
}

/// Nothing came in time, of a call that has no error of its own for that.
pub fn timed_out() -> Failure {
    let text = "nothing happened in time".into();
    Failure { outcome: Outcome::TimedOut, text, undelivered: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::directory::client::DirectoryError;
    use std::sync::{Arc, OnceLock};

    /// What went wrong last in this thread, as far as there is room: how long all of it is, and what is written.
    fn error_text(room: usize) -> (usize, String) {
        let mut bytes = vec![1_u8; room];
        // SAFETY: there are so many.
        let whole = unsafe { ktf_error_text(bytes.as_mut_ptr().cast(), bytes.len()) };
        let text = CStr::from_bytes_until_nul(&bytes).unwrap();
        (whole, text.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_sentence_is_cut_between_characters() {
        assert_eq!(outcome_of(|| Err(Failure::invalid("na\u{ef}ve"))), Outcome::Invalid);
        for (room, written) in [(7, "na\u{ef}ve"), (6, "na\u{ef}v"), (4, "na"), (1, "")] {
            assert_eq!(error_text(room), (6, written.to_owned()));
        }
        // SAFETY: nothing is written.
        assert_eq!(unsafe { ktf_error_text(std::ptr::null_mut(), 0) }, 6);
    }

    /// Goal: what a thread ends last may call still. Method: it is begun before the library's own data of the thread, and so
    /// ends after that. A panic there would end the process.
    #[test]
    fn a_thread_that_ends_may_call() {
        struct EndsLast(Arc<OnceLock<(Outcome, (usize, String))>>);
        impl Drop for EndsLast {
            fn drop(&mut self) {
                let outcome = outcome_of(|| Err(Failure::invalid("late")));
                let _ = self.0.set((outcome, error_text(8)));
            }
        }
        thread_local! {
            static HELD: RefCell<Option<EndsLast>> = const { RefCell::new(None) };
        }
        let told = Arc::new(OnceLock::new());
        let tells = EndsLast(told.clone());
        let ends = std::thread::spawn(move || {
            HELD.set(Some(tells));
            outcome_of(|| Err(Failure::invalid("early")))
        });
        assert_eq!(ends.join().unwrap(), Outcome::Invalid);
        assert_eq!(told.get(), Some(&(Outcome::Invalid, (0, String::new()))));
    }

    /// What programs print is what people look for in the header.
    #[test]
    fn names_have_the_numbers_of_the_header() {
        let header = include_str!("../include/keeptime_fabric.h");
        for (number, name) in NAMES.iter().enumerate() {
            let line = format!("\t{} = {number}", name.to_str().unwrap());
            assert!(header.contains(&line), "{line}");
        }
        assert!(!header.contains(&format!(" = {},\t/*", NAMES.len())));
    }

    /// What the header says of each: what is too much, the caller can mend; a refusal, the daemon's
    /// administrator.
    #[test]
    fn a_daemon_that_refuses_is_told_apart_from_too_many_resources() {
        let refused = DirectoryError::Refused("this node is refused by another".into());
        let registering = RegisterError::Directory(refused.clone());
        assert_eq!(Failure::from(registering).outcome, Outcome::NoDaemon);
        assert_eq!(Failure::from(FindError::Directory(refused)).outcome, Outcome::NoDaemon);
        assert_eq!(Failure::from(RegisterError::TooMany).outcome, Outcome::TooLong);
    }

    /// A receiver that holds all that it may is told apart from one that takes nothing so long; the sentence says how much
    /// it was.
    #[test]
    fn a_receiver_without_room_is_told_apart_from_a_message_that_is_too_long() {
        let full = SendError::Rejected(fabric::Reason::NoRoom { asked: 1064, left: 50 });
        let full = Failure::from(full);
        assert_eq!(full.outcome, Outcome::NoRoom);
        let is_told = full.text.contains("1064 bytes") && full.text.contains("50 are left");
        assert!(is_told, "{}", full.text);
        let long = Failure::from(SendError::Rejected(fabric::Reason::TooLong));
        assert_eq!(long.outcome, Outcome::TooLong);
    }
}
