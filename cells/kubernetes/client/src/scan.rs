//! Splitting of response bodies into objects while they are received, without parsing the objects.

use bytes::{Buf, Bytes, BytesMut};
use k8s_types::Key;

/// The maximum size of an object in bytes. The server's own limit is 3 MB.
pub(crate) const MAX_OBJECT: usize = 16 << 20;

/// The maximum number of bytes without a complete piece: such a body does not consist of objects.
const MAX_WITHOUT_PIECE: usize = 4 * MAX_OBJECT;

/// The number of bytes kept of an object that is too large, to find its name.
const MAX_HEAD: usize = 4096;

/// The capacity that a buffer keeps for the next object.
const KEPT_CAPACITY: usize = 64 << 10;

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The events of a watch, a sequence of objects `{"type": .., "object": ..}`.
    Events,
    /// A list, `{"metadata": .., "items": [..]}`.
    List,
}

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// An event of a watch.
    Event {
        /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`.
        kind: EventKind,
        /// The object.
        object: Bytes,
    },
    /// An object of a list.
    Item(Bytes),
    /// The end of a list, with its metadata.
    End(Bytes),
    /// An object with more than 16 MiB.
    TooLarge {
        /// The type of its event; none in a list.
        kind: Option<EventKind>,
        /// Its name, if that is within its first 16 MiB.
        key: Option<Key>,
    },
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The object was added to the selection.
    Added,
    /// The object has changed.
    Modified,
    /// The object was deleted from the selection.
    Deleted,
    /// Nothing has changed up to this version.
    Bookmark,
    /// The watch has ended; the object is a `Status`.
    Error,
}

impl EventKind {
    fn of(json: &[u8]) -> Option<EventKind> {
        Some(match json {
            b"\"ADDED\"" => EventKind::Added,
            b"\"MODIFIED\"" => EventKind::Modified,
            b"\"DELETED\"" => EventKind::Deleted,
            b"\"BOOKMARK\"" => EventKind::Bookmark,
            b"\"ERROR\"" => EventKind::Error,
            _ => return None,
        })
    }
}

/// A body that is neither a list nor a stream of events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expected} expected, found {found:?}")]
pub struct Unexpected {
    expected: &'static str,
    /// The start of the unexpected text, at most 120 bytes.
    found: String,
}

/// Splits a body into its pieces while it is received, in chunks of any size. Each byte is scanned once and copied
/// once; only the incomplete piece is buffered.
#[derive(Debug)]
pub struct Splitter {
    shape: Shape,
    /// Starts with the incomplete token: a member's name, a value, an element.
    buffer: BytesMut,
    /// The number of its bytes that have been scanned.
    at: usize,
    place: Place,
    member: Member,
    kind: Option<EventKind>,
    object: Option<Bytes>,
    metadata: Bytes,
    /// Set if the current value is too large: the name of the object, if known.
    too_large: Option<Option<Key>>,
    /// The number of bytes received since the last piece.
    filling: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before or behind an object.
    Outside,
    /// Before a member's name or the end of the object.
    Member,
    Name(Skip),
    Colon,
    /// Before a value.
    Value,
    InValue(Skip),
    /// Before an element of `items` or their end.
    Element,
    InElement(Skip),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Type,
    Object,
    Metadata,
    Items,
    Other,
}

impl Splitter {
    /// Creates a splitter at the start of a body.
    pub fn new(shape: Shape) -> Splitter {
        Splitter {
            shape,
            buffer: BytesMut::new(),
            at: 0,
            place: Place::Outside,
            member: Member::Other,
            kind: None,
            object: None,
            metadata: Bytes::new(),
            too_large: None,
            filling: 0,
        }
    }

    /// Appends the next bytes of the body.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_CAPACITY.max(chunk.len()) {
            self.buffer = BytesMut::new();
        }
        self.buffer.extend_from_slice(chunk);
        self.filling += chunk.len();
    }

    /// Whether the body may end at the current position.
    pub fn is_between(&self) -> bool {
        self.place == Place::Outside && self.buffer.iter().all(u8::is_ascii_whitespace)
    }

    /// Returns the next piece, if it is complete. Fused after an error.
    pub fn piece(&mut self) -> Result<Option<Piece>, Unexpected> {
        let piece = self.whole()?;
        if piece.is_some() {
            self.filling = self.buffer.len();
        } else if self.filling > MAX_WITHOUT_PIECE {
            return Err(self.unexpected("the end of an object within 64 MiB"));
        }
        Ok(piece)
    }

    fn whole(&mut self) -> Result<Option<Piece>, Unexpected> {
        loop {
            let piece = match self.place {
                Place::InValue(skip) => match self.skip(skip, Place::InValue) {
                    Some(value) => self.value(value)?,
                    None => return Ok(None),
                },
                Place::InElement(skip) => match self.skip(skip, Place::InElement) {
                    Some(value) => {
                        self.place = Place::Element;
                        Some(match self.too_large.take() {
                            Some(key) => Piece::TooLarge { kind: None, key },
                            None => Piece::Item(value),
                        })
                    }
                    None => return Ok(None),
                },
                Place::Name(skip) => match self.skip(skip, Place::Name) {
                    Some(name) => {
                        self.member = self.named(&name);
                        self.place = Place::Colon;
                        None
                    }
                    None => return Ok(None),
                },
                Place::Outside | Place::Member | Place::Colon | Place::Value | Place::Element => {
                    let Some(byte) = self.significant() else { return Ok(None) };
                    self.begin(byte)?
                }
            };
            if piece.is_some() {
                return Ok(piece);
            }
        }
    }

    /// Returns the next byte that is not white space, without consuming it.
    fn significant(&mut self) -> Option<u8> {
        let blank = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.buffer.advance(blank);
        self.buffer.first().copied()
    }

    fn begin(&mut self, byte: u8) -> Result<Option<Piece>, Unexpected> {
        let skip = Skip::begin(byte);
        match (self.place, byte) {
            (Place::Outside, b'{') => {
                self.buffer.advance(1);
                self.place = Place::Member;
            }
            (Place::Member, b',') | (Place::Element, b',') => self.buffer.advance(1),
            (Place::Member, b'}') => {
                self.buffer.advance(1);
                self.place = Place::Outside;
                return self.end();
            }
            (Place::Member, b'"') => self.place = Place::Name(skip),
            (Place::Colon, b':') => {
                self.buffer.advance(1);
                self.place = Place::Value;
            }
            (Place::Value, b'[') if self.member == Member::Items => {
                self.buffer.advance(1);
                self.place = Place::Element;
            }
            (Place::Element, b']') => {
                self.buffer.advance(1);
                self.place = Place::Member;
            }
            (Place::Value, b',' | b':' | b'}' | b']') => return Err(self.unexpected("a value")),
            (Place::Value, _) => self.place = Place::InValue(skip),
            (Place::Element, b'{') => self.place = Place::InElement(skip),
            (Place::Outside | Place::Element, _) => return Err(self.unexpected("a JSON object")),
            (Place::Member, _) => return Err(self.unexpected("a member of a JSON object")),
            _ => return Err(self.unexpected("a colon")),
        }
        Ok(None)
    }

    /// Continues to scan a value; returns it when it is complete.
    fn skip(&mut self, mut skip: Skip, place: fn(Skip) -> Place) -> Option<Bytes> {
        match skip.run(&self.buffer[self.at..]) {
            Some(length) => {
                let end = self.at + length;
                self.at = 0;
                let value = self.buffer.split_to(end).freeze();
                if value.len() > MAX_OBJECT && self.too_large.is_none() {
                    self.too_large = Some(name_of(&value));
                }
                Some(if self.too_large.is_some() { value.slice(..value.len().min(MAX_HEAD)) } else { value })
            }
            None => {
                if self.buffer.len() > MAX_OBJECT && self.too_large.is_none() {
                    self.too_large = Some(name_of(&self.buffer));
                }
                if self.too_large.is_some() {
                    self.buffer.truncate(MAX_HEAD);
                }
                self.at = self.buffer.len();
                self.place = place(skip);
                None
            }
        }
    }

    fn named(&self, name: &[u8]) -> Member {
        match (self.shape, name) {
            (Shape::Events, b"\"type\"") => Member::Type,
            (Shape::Events, b"\"object\"") => Member::Object,
            (Shape::List, b"\"metadata\"") => Member::Metadata,
            (Shape::List, b"\"items\"") => Member::Items,
            _ => Member::Other,
        }
    }

    fn value(&mut self, value: Bytes) -> Result<Option<Piece>, Unexpected> {
        self.place = Place::Member;
        if self.too_large.is_some() && self.member != Member::Object {
            return Err(unexpected("an object of at most 16 MiB", &value));
        }
        match self.member {
            Member::Type => {
                self.kind =
                    Some(EventKind::of(&value).ok_or_else(|| unexpected("a type of events", &value))?);
            }
            Member::Object => self.object = Some(value),
            Member::Metadata => self.metadata = Bytes::copy_from_slice(&value),
            // `items: null` is an empty list.
            Member::Items if &*value != b"null" => return Err(unexpected("a list of items", &value)),
            Member::Items | Member::Other => {}
        }
        Ok(None)
    }

    /// Handles the end of the outermost object.
    fn end(&mut self) -> Result<Option<Piece>, Unexpected> {
        if self.shape == Shape::List {
            return Ok(Some(Piece::End(std::mem::take(&mut self.metadata))));
        }
        match (self.kind.take(), self.object.take()) {
            (kind, Some(_)) if self.too_large.is_some() => {
                Ok(Some(Piece::TooLarge { kind, key: self.too_large.take().flatten() }))
            }
            (Some(kind), Some(object)) => Ok(Some(Piece::Event { kind, object })),
            (_, object) => Err(unexpected("an event with type and object", &object.unwrap_or_default())),
        }
    }

    fn unexpected(&self, expected: &'static str) -> Unexpected {
        unexpected(expected, &self.buffer)
    }
}

fn unexpected(expected: &'static str, found: &[u8]) -> Unexpected {
    let found = String::from_utf8_lossy(&found[..found.len().min(120)]);
    Unexpected { expected, found: found.split_whitespace().collect::<Vec<_>>().join(" ") }
}

/// The scan state within a value. Brackets are counted, not matched: the parser of the value validates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Skip {
    depth: u32,
    text: bool,
    escaped: bool,
    /// Whether the value is a number or literal, which ends before the first byte that cannot belong to it.
    bare: bool,
}

impl Skip {
    /// Creates the state at a value with this first byte, which is not consumed.
    fn begin(byte: u8) -> Skip {
        Skip { depth: 0, text: false, escaped: false, bare: !matches!(byte, b'{' | b'[' | b'"') }
    }

    /// Scans bytes; returns the number of those that belong to the value, if it ends among them.
    fn run(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.bare {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
            return bytes.iter().position(ends);
        }
        let mut at = 0;
        while at < bytes.len() {
            if self.text {
                if self.escaped {
                    self.escaped = false;
                    at += 1;
                    continue;
                }
                let found = bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
                at += found + 1;
                match bytes[at - 1] {
                    b'\\' => self.escaped = true,
                    _ => {
                        self.text = false;
                        if self.depth == 0 {
                            return Some(at);
                        }
                    }
                }
                continue;
            }
            match bytes[at] {
                b'"' => self.text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        None
    }
}

/// Returns the value of a member of an object, without scanning the rest.
pub fn find<'j>(object: &'j [u8], name: &str) -> Option<&'j [u8]> {
    member(object, name, false)
}

/// Returns the name of an object that may be truncated.
fn name_of(object: &[u8]) -> Option<Key> {
    let metadata = member(object, "metadata", true)?;
    let name = text(metadata, "name").filter(|name| !name.is_empty())?;
    Some(Key::new(text(metadata, "namespace").unwrap_or_default(), name))
}

/// As [`find`]; with `open` also a truncated value.
fn member<'j>(object: &'j [u8], name: &str, open: bool) -> Option<&'j [u8]> {
    let mut rest = object.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        rest = rest.trim_ascii_start();
        rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
        let end = Skip::begin(*rest.first().filter(|byte| **byte == b'"')?).run(rest)?;
        let (key, behind) = rest.split_at(end);
        let value = behind.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let end = Skip::begin(*value.first()?).run(value).or(open.then_some(value.len()))?;
        if &key[1..key.len() - 1] == name.as_bytes() {
            return Some(&value[..end]);
        }
        rest = &value[end..];
    }
}

/// Returns the text of a member of an object; none if it is missing or not a string.
pub fn text(object: &[u8], name: &str) -> Option<String> {
    serde_json::from_slice(find(object, name)?).ok()
}

/// Returns the name of an object, as far as it has one.
pub(crate) fn key(object: &[u8]) -> Key {
    let metadata = find(object, "metadata").unwrap_or_default();
    Key::new(text(metadata, "namespace").unwrap_or_default(), text(metadata, "name").unwrap_or_default())
}
