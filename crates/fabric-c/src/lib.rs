//! Owns the fabric's C ABI, `libkeeptime_fabric`: every function of `include/keeptime_fabric.h` checks what it
//! is given and calls the library; never decides anything.
//!
//! What holds for all of it is said in the header. Each function turns pointers into values
//! (`arguments`), calls, and turns the outcome into a number and a sentence (`outcome`); none lets
//! a panic out.

#![allow(clippy::missing_safety_doc, reason = "the header says what each pointer has to be")]

mod arguments;
mod buffer;
mod context;
mod log;
mod message;
mod outcome;
mod records;
mod region;
mod resource;
mod types;
mod version;
mod watch;

// The header says that several threads may use one object at once. Pointers hide from the compiler whether they may.
const _: () = {
    const fn may_be_shared<T: Send + Sync>() {}
    may_be_shared::<fabric::Context>();
    may_be_shared::<fabric::Resource>();
    may_be_shared::<fabric::Message>();
    may_be_shared::<fabric::region::Region>();
    may_be_shared::<fabric::region::Reader>();
    may_be_shared::<records::Records>();
    may_be_shared::<watch::Watch>();
};
