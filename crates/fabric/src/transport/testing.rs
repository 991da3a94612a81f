//! What tests of several transports need.

use super::Sink;
use crate::frame::{Frame, Head, Malformed};
use crate::id::Place;
use crate::matching::Tag;
use crate::payload::Buffer;
use std::net::{TcpListener, TcpStream};

/// Frames that have arrived.
#[derive(Default)]
pub struct Collected(pub Vec<(Head, Vec<u8>)>);

impl Sink for Collected {
    fn buffer_of_piece(&mut self, _: u32, length: usize) -> Result<Vec<u8>, Malformed> {
        Ok(Vec::with_capacity(length))
    }
    fn frame(&mut self, head: &Head, payload: Buffer) -> Result<(), Malformed> {
        self.0.push((*head, payload.into_vec()));
        Ok(())
    }
}

/// Both ends of a connection.
pub fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// A frame and a payload that are unlike those of other numbers.
pub fn message(number: u32, length: usize) -> (Head, Vec<u8>) {
    let place = Place { slot: number, generation: 1 };
    let frame = Frame::Message { from: place, to: place, tag: Tag(u64::from(number)), credit: 0 };
    let head = Head { frame, length: length as u32, seen: number };
    (head, (0..length).map(|at| (at as u32 ^ number) as u8).collect())
}
