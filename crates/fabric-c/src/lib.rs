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
mod message;
mod outcome;
mod region;
mod resource;
mod types;
mod watch;
