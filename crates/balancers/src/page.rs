//! Pages of a balancer's own web interface: asked for by HTTP/1.0, so that an answer ends where the
//! connection does.

use crate::answer::whole;
use crate::balancer::ANSWER_WITHIN;
use std::io::{Error, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

/// The body of an answer with the status 200.
pub(crate) fn fetch(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(request.as_bytes())?;
    let limit = |stream: &TcpStream, left| stream.set_read_timeout(Some(left));
    let answer = whole(&mut stream, ANSWER_WITHIN, limit)?;
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    let problem = |what: String| Error::new(ErrorKind::InvalidData, what);
    let length = match response.parse(&answer) {
        Ok(httparse::Status::Complete(length)) => length,
        _ => return Err(problem("not an HTTP answer".into())),
    };
    match response.code {
        Some(200) => Ok(String::from_utf8_lossy(&answer[length..]).into_owned()),
        code => Err(problem(format!("status {}", code.unwrap_or(0)))),
    }
}

/// The contents of all elements `tag` of an XML text, where none is inside another of its name.
pub(crate) fn elements<'a>(text: &'a str, tag: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let parts = text.split(open.as_str()).skip(1);
    parts.filter_map(|part| part.split_once(close.as_str()).map(|(inside, _)| inside)).collect()
}

/// The content of the first element `tag`.
pub(crate) fn element<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    elements(text, tag).first().map(|inside| inside.trim())
}

/// As a part of a form or an address.
pub(crate) fn quoted(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_their_whole_name() {
        let text = "<w:all><w:one> a </w:one><w:ones>b</w:ones><w:one>c</w:one></w:all>";
        assert_eq!(elements(text, "w:one"), [" a ", "c"]);
        assert_eq!(element(text, "w:one"), Some("a"));
        assert_eq!(element(text, "w:none"), None);
        assert_eq!(elements("<a>b", "a"), Vec::<&str>::new());
    }

    #[test]
    fn what_means_something_in_a_form_is_quoted() {
        assert_eq!(quoted("http://a:1/b c&d"), "http%3A%2F%2Fa%3A1%2Fb%20c%26d");
    }
}
