//! A server that says what a test wants, and records that it could tell.

use crate::attributes::Attributes;
use crate::carriers::Carriers;
use crate::directory::address_of;
use crate::directory::protocol::{Answer, ContextInfo, Record, Request, decode, encode};
use crate::door::Callers;
use crate::frame;
use crate::id::{ContextId, Place, ResourceId};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// For anything, on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(60);
pub(super) const PLACE: Place = Place { slot: 3, generation: 1 };

/// A place for servers of this name, and a program.
pub(super) fn listen(name: &str) -> (String, UnixListener, ContextInfo) {
    let name = format!("{name}-{}", std::process::id());
    let listener = UnixListener::bind_addr(&address_of(&name).unwrap()).unwrap();
    (name, listener, context(1, "n0"))
}

pub(super) fn accept(listener: &UnixListener) -> UnixStream {
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

pub(super) fn welcome() -> Answer {
    Answer::Welcome { node: "n0".into(), owner: 0, key: None, claim: None }
}

pub(super) fn say(stream: &mut UnixStream, answers: &[Answer]) {
    let mut said = Vec::new();
    answers.iter().for_each(|answer| encode(answer, &mut said));
    stream.write_all(&said).unwrap();
}

/// Says what `answers` to each request, until there is nothing to be said any more or the program
/// is gone.
pub(super) fn serve(
    mut stream: UnixStream,
    mut answers: impl FnMut(Request) -> Option<Vec<Answer>>,
) {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        bytes.extend_from_slice(&piece[..length]);
        while let Some((request, length)) = decode(&bytes).unwrap() {
            bytes.drain(..length);
            let Some(answers) = answers(request) else { return };
            say(&mut stream, &answers);
        }
    }
}

/// A record, as a server on `node` tells it.
pub(super) fn record(node: &str, attributes: Attributes) -> Record {
    let home = context(2, node);
    Record { id: ResourceId { context: home.id, place: PLACE }, attributes, home: home.into() }
}

fn context(number: u64, node: &str) -> ContextInfo {
    let (id, node) = (ContextId::new(number), node.into());
    let (addresses, carriers) = (Vec::new(), Carriers::default());
    ContextInfo {
        id,
        node,
        owner: 0,
        callers: Callers::SameUser,
        addresses,
        carriers,
        speaks: frame::VERSION,
    }
}
