//! Rows as JSON text in the format of Go's `encoding/json`.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter};
use serde_json::{Serializer, Value};

/// Appends the object on one line; if its serialization fails or panics, the error message as a JSON string.
pub(super) fn json<T: Serialize>(object: &T, out: &mut Vec<u8>) {
    let start = out.len();
    let written = catch_unwind(AssertUnwindSafe(|| {
        object.serialize(&mut Serializer::with_formatter(&mut *out, Escaping))
    }));
    let message = match written {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "panic while the object was written".to_owned(),
    };
    out.truncate(start);
    out.extend_from_slice(Value::String(message).to_string().as_bytes());
}

/// A formatter without blanks that escapes the characters that Go's `encoding/json` escapes for HTML and JavaScript.
struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (before, found) = rest.split_at(at);
            CompactFormatter.write_string_fragment(out, before)?;
            let Some(c) = found.chars().next() else { break };
            write!(out, "\\u{:04x}", u32::from(c))?;
            rest = &found[c.len_utf8()..];
        }
        CompactFormatter.write_string_fragment(out, rest)
    }
}

#[cfg(test)]
mod tests {
    use serde::ser::Error;

    use super::*;

    struct Fails;
    struct Panics;

    impl Serialize for Fails {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(S::Error::custom("no \"text\""))
        }
    }

    impl Serialize for Panics {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("bad row")
        }
    }

    fn text(object: &impl Serialize) -> String {
        let mut text = b"before:".to_vec();
        json(object, &mut text);
        String::from_utf8(text.split_off(b"before:".len())).unwrap()
    }

    #[test]
    fn texts_are_escaped_as_in_go_and_failures_return_the_error() {
        assert_eq!(text(&["<a>&\u{2028}\u{2029}é\"", ""]), r#"["\u003ca\u003e\u0026\u2028\u2029é\"",""]"#);
        assert_eq!(text(&Fails), r#""no \"text\"""#);
        assert_eq!(text(&Panics), r#""panic while the object was written""#);
    }
}
