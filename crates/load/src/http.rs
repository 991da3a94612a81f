//! One request and its answer on a connection (HTTP/1.1). Whatever goes wrong ends the connection, and
//! is told; nothing is sent again.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest head of an answer.
const HEAD_MAX: usize = 64 * 1024;
/// Most fields of a head.
const FIELDS_MAX: usize = 128;
const BLOCK: usize = 16 * 1024;

/// Why there is no whole answer.
#[derive(Debug, Error)]
pub enum Failure {
    /// Nothing was sent.
    #[error("no connection")]
    NotConnected(#[source] std::io::Error),
    /// The connection ended before the answer did.
    #[error("the connection broke")]
    Broken(#[source] std::io::Error),
    /// No whole answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The answer is not HTTP.
    #[error("an answer that is not HTTP: {0}")]
    Malformed(&'static str),
}

/// A whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// As in 200.
    pub status: u16,
    /// Bytes of the body.
    pub bytes: u64,
    /// Whether the connection can be used again.
    pub reusable: bool,
}

/// A connection to one address.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// What was read and not used: `buffer[used..]`.
    buffer: Vec<u8>,
    used: usize,
    deadline: Instant,
}

impl Connection {
    /// Connects before `deadline`.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::TimedOut`].
    pub fn open(address: SocketAddr, deadline: Instant) -> Result<Self, Failure> {
        let left = left_until(deadline)?;
        let stream = TcpStream::connect_timeout(&address, left).map_err(|error| {
            if is_timeout(&error) { Failure::TimedOut } else { Failure::NotConnected(error) }
        })?;
        stream.set_nodelay(true).map_err(Failure::NotConnected)?;
        Ok(Self { stream, buffer: Vec::new(), used: 0, deadline })
    }

    /// Sends `request`, whole as it is, and reads the answer before `deadline`. After a failure or an
    /// answer that says so the connection is of no use any more.
    ///
    /// # Errors
    /// All but [`Failure::NotConnected`].
    pub fn exchange(&mut self, request: &[u8], deadline: Instant) -> Result<Answer, Failure> {
        self.deadline = deadline;
        self.send(request)?;
        loop {
            let head = self.head()?;
            // What comes before the answer, as in 100 Continue, has no body.
            if head.status < 200 {
                continue;
            }
            let bytes = match head.body {
                Body::None => 0,
                Body::Length(length) => self.skip(length)?,
                Body::Chunked => self.chunks()?,
                Body::UntilEnd => self.rest()?,
            };
            let reusable = head.keeps && head.body != Body::UntilEnd;
            return Ok(Answer { status: head.status, bytes, reusable });
        }
    }

    /// Whether the other end keeps it open and has said nothing since the last answer: else a request sent now is
    /// lost for sure, which clients that keep connections do not let happen. Three system calls.
    pub fn is_idle(&self) -> bool {
        let look = || {
            self.stream.set_nonblocking(true)?;
            let said = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            said
        };
        self.used == self.buffer.len()
            && look().is_err_and(|error: std::io::Error| error.kind() == ErrorKind::WouldBlock)
    }

    fn send(&self, request: &[u8]) -> Result<(), Failure> {
        let mut rest = request;
        while !rest.is_empty() {
            let limit = TcpStream::set_write_timeout;
            match in_time(&self.stream, self.deadline, limit, |mut stream| stream.write(rest))? {
                0 => return Err(Failure::Broken(ErrorKind::WriteZero.into())),
                written => rest = &rest[written..],
            }
        }
        Ok(())
    }

    fn head(&mut self) -> Result<Head, Failure> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
            let mut response = httparse::Response::new(&mut fields);
            match response.parse(&self.buffer[self.used..]) {
                Ok(httparse::Status::Complete(length)) => {
                    let head = Head::read(&response)?;
                    self.used += length;
                    return Ok(head);
                }
                Ok(httparse::Status::Partial) if self.buffer.len() - self.used < HEAD_MAX => {
                    self.more()?;
                }
                Ok(httparse::Status::Partial) => return Err(Failure::Malformed("a head too long")),
                Err(_) => return Err(Failure::Malformed("a head that cannot be read")),
            }
        }
    }

    /// Passes over `length` bytes.
    fn skip(&mut self, length: u64) -> Result<u64, Failure> {
        let mut left = length;
        while left > 0 {
            if self.used == self.buffer.len() {
                self.more()?;
            }
            let here = left.min((self.buffer.len() - self.used) as u64);
            self.used += here as usize;
            left -= here;
        }
        Ok(length)
    }

    fn chunks(&mut self) -> Result<u64, Failure> {
        let mut bytes = 0u64;
        loop {
            let (line, size) = loop {
                match httparse::parse_chunk_size(&self.buffer[self.used..]) {
                    Ok(httparse::Status::Complete(chunk)) => break chunk,
                    // What may stand behind the size has no end of its own.
                    Ok(httparse::Status::Partial) if self.buffer.len() - self.used < HEAD_MAX => {
                        self.more()?;
                    }
                    Ok(httparse::Status::Partial) => {
                        return Err(Failure::Malformed("a chunk's first line too long"));
                    }
                    Err(_) => return Err(Failure::Malformed("a chunk without a size")),
                }
            };
            self.used += line;
            if size == 0 {
                self.trailer()?;
                return Ok(bytes);
            }
            let with_end = size.checked_add(2).ok_or(Failure::Malformed("a chunk too long"))?;
            self.skip(with_end)?;
            bytes = bytes.saturating_add(size);
        }
    }

    /// Lines up to an empty one.
    fn trailer(&mut self) -> Result<(), Failure> {
        let mut length = 0;
        let mut last = 0;
        loop {
            if self.used == self.buffer.len() {
                self.more()?;
            }
            let byte = self.buffer[self.used];
            self.used += 1;
            length += 1;
            match byte {
                b'\n' if last == 0 => return Ok(()),
                b'\n' => last = 0,
                b'\r' => {}
                _ if length > HEAD_MAX => return Err(Failure::Malformed("a trailer too long")),
                _ => last = 1,
            }
        }
    }

    fn rest(&mut self) -> Result<u64, Failure> {
        let mut bytes = (self.buffer.len() - self.used) as u64;
        self.used = self.buffer.len();
        loop {
            match self.read() {
                Ok(0) => return Ok(bytes),
                Ok(read) => {
                    bytes += read as u64;
                    self.used = self.buffer.len();
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads something, or fails.
    fn more(&mut self) -> Result<(), Failure> {
        match self.read()? {
            0 => Err(Failure::Broken(ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    fn read(&mut self) -> Result<usize, Failure> {
        // What is used goes, so that the buffer stays as small as one answer's head and a block.
        self.buffer.drain(..self.used);
        self.used = 0;
        let old = self.buffer.len();
        self.buffer.resize(old + BLOCK, 0);
        let (limit, block) = (TcpStream::set_read_timeout, &mut self.buffer[old..]);
        let read = in_time(&self.stream, self.deadline, limit, |mut stream| stream.read(block));
        self.buffer.truncate(old + *read.as_ref().unwrap_or(&0));
        read
    }
}

/// Has `call` wait until `deadline` at most, by the `limit` of the stream. What waits with a limit is interrupted whenever
/// the process was stopped and goes on (signal(7)): it is called again then, with what is left.
fn in_time(
    stream: &TcpStream,
    deadline: Instant,
    limit: fn(&TcpStream, Option<Duration>) -> std::io::Result<()>,
    mut call: impl FnMut(&TcpStream) -> std::io::Result<usize>,
) -> Result<usize, Failure> {
    loop {
        limit(stream, Some(left_until(deadline)?)).map_err(Failure::Broken)?;
        match call(stream) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome.map_err(broken),
        }
    }
}

fn left_until(deadline: Instant) -> Result<Duration, Failure> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Failure::TimedOut) } else { Ok(left) }
}

struct Head {
    status: u16,
    body: Body,
    keeps: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    Length(u64),
    Chunked,
    UntilEnd,
}

impl Head {
    fn read(response: &httparse::Response<'_, '_>) -> Result<Self, Failure> {
        let status = response.code.ok_or(Failure::Malformed("no status"))?;
        let field = |name: &str| {
            let found = response.headers.iter().find(|f| f.name.eq_ignore_ascii_case(name));
            found.and_then(|field| std::str::from_utf8(field.value).ok()).map(str::trim)
        };
        let is = |name, value: &str| field(name).is_some_and(|v| v.eq_ignore_ascii_case(value));
        let body = if matches!(status, 100..200 | 204 | 304) {
            Body::None
        } else if is("transfer-encoding", "chunked") {
            Body::Chunked
        } else if let Some(length) = field("content-length") {
            Body::Length(length.parse().map_err(|_| Failure::Malformed("a bad length"))?)
        } else {
            Body::UntilEnd
        };
        let keeps = match response.version {
            Some(0) => is("connection", "keep-alive"),
            _ => !is("connection", "close"),
        };
        Ok(Self { status, body, keeps })
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn broken(error: std::io::Error) -> Failure {
    if is_timeout(&error) { Failure::TimedOut } else { Failure::Broken(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;
    use std::sync::mpsc::RecvTimeoutError::Timeout;

    /// What a client makes of `answer`, sent in pieces of `piece` bytes, then the end.
    fn exchange(answer: &[u8], piece: usize) -> Result<Answer, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_nodelay(true).unwrap();
                let mut request = [0; 3];
                stream.read_exact(&mut request).unwrap();
                for piece in answer.chunks(piece) {
                    if stream.write_all(piece).is_err() {
                        return;
                    }
                }
            });
            Connection::open(address, deadline)?.exchange(b"ask", deadline)
        })
    }

    #[test]
    fn bodies_end_where_http_says() {
        let whole = |text: &str| exchange(text.as_bytes(), 1).unwrap();
        let answer = |status, bytes, reusable| Answer { status, bytes, reusable };
        assert_eq!(whole("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"), answer(200, 3, true));
        assert_eq!(whole("HTTP/1.1 204 No\r\n\r\n"), answer(204, 0, true));
        assert_eq!(whole("HTTP/1.1 200 OK\r\n\r\nabcd"), answer(200, 4, false));
        assert_eq!(
            whole(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\nA: b\r\n\r\n"
            ),
            answer(200, 4, true)
        );
        assert_eq!(
            whole("HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
            answer(503, 0, false)
        );
        assert_eq!(whole("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"), answer(200, 0, false));
        assert_eq!(
            whole("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            answer(200, 0, true)
        );
    }

    #[test]
    fn a_connection_that_the_server_closed_is_not_idle() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut kept = Connection::open(listener.local_addr().unwrap(), deadline).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        assert!(kept.exchange(b"ask", deadline).unwrap().reusable);
        assert!(kept.is_idle());
        server.shutdown(std::net::Shutdown::Write).unwrap();
        while kept.is_idle() {
            assert!(Instant::now() < deadline, "the end never came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_answer_that_stops_early_is_broken() {
        for text in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"] {
            let failure = exchange(text.as_bytes(), 100).unwrap_err();
            assert!(matches!(failure, Failure::Broken(_)), "{text:?}: {failure}");
        }
    }

    #[test]
    fn what_comes_before_a_chunk_is_bounded() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;";
        let answer = head.to_owned() + &"x".repeat(4 * HEAD_MAX);
        let failure = exchange(answer.as_bytes(), BLOCK).unwrap_err();
        assert!(matches!(failure, Failure::Malformed(_)), "{failure}");
    }

    #[test]
    fn who_says_nothing_is_not_waited_for_beyond_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let mut connection = Connection::open(listener.local_addr().unwrap(), deadline).unwrap();
        assert!(matches!(connection.exchange(b"ask", deadline), Err(Failure::TimedOut)));
    }

    // Goal: who is stopped and goes on reads on, and not for ever. Method: a call that is interrupted twice, and one that
    // always is.
    #[test]
    fn what_is_interrupted_is_called_again_until_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut calls = 0;
        let read = in_time(&stream, deadline, TcpStream::set_read_timeout, |_| {
            calls += 1;
            if calls < 3 { Err(ErrorKind::Interrupted.into()) } else { Ok(7) }
        });
        assert_eq!((read.unwrap(), calls), (7, 3));
        let deadline = Instant::now() + Duration::from_millis(20);
        let read = in_time(&stream, deadline, TcpStream::set_read_timeout, |_| {
            Err(ErrorKind::Interrupted.into())
        });
        assert!(matches!(read, Err(Failure::TimedOut)), "{read:?}");
    }

    // Goal: sending is over at the deadline, however slowly the request is taken. Method: a server that takes a block every
    // now and then, so that each call succeeds in part.
    #[test]
    fn a_request_that_is_taken_slowly_is_given_up_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Many times what the kernel's buffers take: without an end it would be sent for seconds.
        let request = vec![b'x'; 64 << 20];
        std::thread::scope(|scope| {
            let (given_up, until_given_up) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut block = vec![0; 384 << 10];
                let pause = Duration::from_millis(50);
                while until_given_up.recv_timeout(pause).is_err_and(|error| error == Timeout) {
                    if stream.read(&mut block).unwrap_or(0) == 0 {
                        return;
                    }
                }
            });
            let began = Instant::now();
            let deadline = began + Duration::from_millis(300);
            let outcome = Connection::open(address, deadline)
                .and_then(|mut connection| connection.exchange(&request, deadline));
            let took = began.elapsed();
            drop(given_up);
            assert!(matches!(outcome, Err(Failure::TimedOut)), "{outcome:?}");
            assert!(took < Duration::from_secs(5), "{took:?}");
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn any_answer_is_read_or_refused(
            start in prop::sample::select(vec![
                "", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            ]),
            rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = exchange(&[start.as_bytes(), &rest].concat(), 64);
        }
    }
}
