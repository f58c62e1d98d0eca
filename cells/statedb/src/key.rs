//! Keys of indexes, encoded as bytes that sort as the values do.

mod bits;
mod net;
#[cfg(feature = "ipnetwork")]
mod networks;

use std::borrow::Borrow;
use std::cmp::Ordering;

pub(crate) use bits::{covering, inside};

/// Keys up to this length are stored inline, without allocation: with length and tag they fill one cache line. Rows of
/// a primary index have no stored key, so each comparison during a lookup encodes one; names like `namespace/name`
/// must fit.
const INLINE: usize = 56;

/// An encoded key under construction or in an index. Cheap to compare and to copy up to 56 bytes.
#[derive(Clone)]
pub struct KeyBuf(Bytes);

#[derive(Clone)]
enum Bytes {
    Inline { len: u8, data: Words },
    Heap(Vec<u8>),
}

/// Inline bytes, aligned as the fields of a `Vec`: a number that was pushed is compared in a register. At an odd place the
/// compiler stores it in parts, and the comparison, which loads it as a whole, waits for the stores.
#[derive(Clone)]
#[repr(align(8))]
struct Words([u8; INLINE]);

impl KeyBuf {
    /// Returns an empty key, which sorts before all others.
    #[inline]
    pub fn new() -> Self {
        KeyBuf(Bytes::Inline { len: 0, data: Words([0; INLINE]) })
    }

    /// Returns the encoding of `key`.
    #[inline]
    pub fn of<K: IndexKey + ?Sized>(key: &K) -> Self {
        let mut buf = KeyBuf::new();
        key.encode(&mut buf);
        buf
    }

    /// Appends raw bytes. The caller ensures that no encoding of its type is a prefix of another one.
    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) {
        if let Bytes::Inline { len, data } = &mut self.0 {
            let start = usize::from(*len);
            if let Some(free) = data.0.get_mut(start..start + bytes.len()) {
                free.copy_from_slice(bytes);
                *len += bytes.len() as u8;
                return;
            }
        }
        self.push_far(bytes);
    }

    #[cold]
    fn push_far(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Bytes::Inline { len, data } => {
                self.0 = Bytes::Heap([&data.0[..usize::from(*len)], bytes].concat())
            }
            Bytes::Heap(heap) => heap.extend_from_slice(bytes),
        }
    }

    /// Appends bytes of any length so that they sort as written and prefixes stay prefixes: 00 becomes 00 FF.
    pub fn push_escaped(&mut self, bytes: &[u8]) {
        let mut parts = bytes.split(|b| *b == 0);
        if let Some(first) = parts.next() {
            self.push(first);
        }
        for part in parts {
            self.push(&[0, 0xff]);
            self.push(part);
        }
    }

    /// Ends a sequence written by [`push_escaped`](Self::push_escaped), so that another part can follow.
    pub fn push_end(&mut self) {
        self.push(&[0, 0]);
    }

    /// Returns the least key that is greater than all keys that start with this one; none if there is none.
    pub(crate) fn after(mut self) -> Option<KeyBuf> {
        let last = self.as_bytes().iter().rposition(|byte| *byte != u8::MAX)?;
        let next = self.as_bytes()[last] + 1;
        self.truncate(last);
        self.push(&[next]);
        Some(self)
    }

    fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Bytes::Inline { len: now, .. } => *now = len as u8,
            Bytes::Heap(heap) => heap.truncate(len),
        }
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { len, data } => &data.0[..usize::from(*len)],
            Bytes::Heap(heap) => heap,
        }
    }
}

impl Default for KeyBuf {
    fn default() -> Self {
        KeyBuf::new()
    }
}

impl PartialEq for KeyBuf {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyBuf {}

impl PartialOrd for KeyBuf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBuf {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for KeyBuf {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl Borrow<[u8]> for KeyBuf {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl std::fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A text or byte string that is not a key of the expected type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyParseError {
    /// The given value.
    pub text: String,
    /// The expected form, with its article: "a number", "an IP address".
    pub expected: &'static str,
}

impl KeyParseError {
    /// Returns the error of a text that is not `expected`: "a number", "an IP address".
    pub fn new(text: impl Into<String>, expected: &'static str) -> Self {
        KeyParseError { text: text.into(), expected }
    }
}

impl std::fmt::Display for KeyParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not {}", self.text, self.expected)
    }
}

impl std::error::Error for KeyParseError {}

impl KeyParseError {
    pub(crate) fn raw(raw: &[u8], expected: &'static str) -> Self {
        let text = raw.iter().map(|byte| format!("{byte:02x}")).collect();
        KeyParseError { text, expected }
    }
}

/// A value that can be a key of an index.
///
/// Encodings compare as the values do, and none is a prefix of another encoding of the same type. To implement it for
/// another type, delegate to its parts:
/// ```
/// # use statedb::{IndexKey, KeyBuf, KeyParseError};
/// struct EndpointId(u16);
/// impl IndexKey for EndpointId {
///     fn encode(&self, key: &mut KeyBuf) { self.0.encode(key) }
///     fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> { u16::encode_text(text, key) }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key of an index",
    note = "implement `statedb::IndexKey` for it by delegating to its parts, or index by another field"
)]
pub trait IndexKey {
    /// Appends the encoding.
    fn encode(&self, key: &mut KeyBuf);

    /// Appends the encoding of a value written as text, for the shell and HTTP.
    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError>;

    /// Appends the encoded beginning of all keys whose text starts with `text`. By default the text is a whole key.
    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        Self::encode_text(text, key)
    }

    /// Appends the encoding of the value that these bytes stand for in queries by bytes: integers big-endian, strings as
    /// they are, addresses as 16 bytes. Returns false if there is no such value. By default an error.
    fn encode_raw(raw: &[u8], _key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        Err(KeyParseError::raw(raw, "a key of an index that can be asked by bytes"))
    }

    /// Appends the lower bound of exactly the values whose bytes are equal or greater. Returns false if there are none.
    /// By default an error, except for the empty string, which is the lower bound of all values.
    fn encode_raw_bound(raw: &[u8], _key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        if raw.is_empty() {
            return Ok(true);
        }
        Err(KeyParseError::raw(raw, "a lower bound of an index that sorts as its bytes do"))
    }
}

/// A leading part of keys of type `K`, for prefix queries: a string for strings, `A` for `(A, B)`.
pub trait PrefixOf<K: ?Sized> {
    /// Appends the encoding that all keys with this prefix start with.
    fn encode_prefix(&self, key: &mut KeyBuf);
}

pub(crate) fn parse<V: std::str::FromStr>(text: &str, expected: &'static str) -> Result<V, KeyParseError> {
    text.trim().parse().map_err(|_| KeyParseError { text: text.to_owned(), expected })
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        impl IndexKey for $unsigned {
            #[inline]
            fn encode(&self, key: &mut KeyBuf) {
                key.push(&self.to_be_bytes());
            }
            fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
                parse::<$unsigned>(text, concat!("a number (", stringify!($unsigned), ")"))?.encode(key);
                Ok(())
            }
            fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
                let exact = raw.len() == size_of::<$unsigned>();
                if exact {
                    key.push(raw);
                }
                Ok(exact)
            }
            fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
                let mut bytes = [0; size_of::<$unsigned>()];
                let len = raw.len().min(bytes.len());
                bytes[..len].copy_from_slice(&raw[..len]);
                // Longer bytes are greater than the integer that they start with: the bound is the next integer.
                let longer = <$unsigned>::from(raw.len() > bytes.len());
                let bound = <$unsigned>::from_be_bytes(bytes).checked_add(longer);
                bound.iter().for_each(|bound| bound.encode(key));
                Ok(bound.is_some())
            }
        }
        impl IndexKey for $signed {
            /// The sign bit is flipped, so that negative numbers sort first.
            fn encode(&self, key: &mut KeyBuf) {
                key.push(&(*self as $unsigned ^ (1 << (<$unsigned>::BITS - 1))).to_be_bytes());
            }
            fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
                parse::<$signed>(text, concat!("a number (", stringify!($signed), ")"))?.encode(key);
                Ok(())
            }
            fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
                let value = raw.try_into().ok().map(<$signed>::from_be_bytes);
                value.iter().for_each(|value| value.encode(key));
                Ok(value.is_some())
            }
        }
    )*};
}
integers! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

impl IndexKey for bool {
    fn encode(&self, key: &mut KeyBuf) {
        key.push(&[u8::from(*self)]);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        parse::<bool>(text, "true or false")?.encode(key);
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        let value = [(b"F", false), (b"T", true)].into_iter().find(|(bytes, _)| raw == *bytes);
        value.iter().for_each(|(_, value)| value.encode(key));
        Ok(value.is_some())
    }

    fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        let first = [(b"F", false), (b"T", true)].into_iter().find(|(bytes, _)| raw <= bytes.as_slice());
        first.iter().for_each(|(_, value)| value.encode(key));
        Ok(first.is_some())
    }
}

impl IndexKey for str {
    fn encode(&self, key: &mut KeyBuf) {
        self.as_bytes().encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        text.encode(key);
        Ok(())
    }

    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        key.push_escaped(text.as_bytes());
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        <[u8]>::encode_raw(raw, key)
    }

    fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        <[u8]>::encode_raw_bound(raw, key)
    }
}

impl IndexKey for String {
    fn encode(&self, key: &mut KeyBuf) {
        self.as_str().encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        str::encode_text(text, key)
    }

    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        str::encode_text_prefix(text, key)
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        str::encode_raw(raw, key)
    }

    fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        str::encode_raw_bound(raw, key)
    }
}

impl IndexKey for [u8] {
    fn encode(&self, key: &mut KeyBuf) {
        key.push_escaped(self);
        key.push_end();
    }

    /// Uses the bytes of the text.
    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        text.as_bytes().encode(key);
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        raw.encode(key);
        Ok(true)
    }

    fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        Self::encode_raw(raw, key)
    }
}

/// Fixed length, as MAC addresses.
impl<const N: usize> IndexKey for [u8; N] {
    fn encode(&self, key: &mut KeyBuf) {
        key.push(self);
    }

    /// Parses hexadecimal bytes joined by colons, as MAC addresses are written.
    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let wrong = || KeyParseError { text: text.to_owned(), expected: "hexadecimal bytes joined by `:`" };
        let bytes: Vec<u8> = text
            .trim()
            .split(':')
            .map(|part| u8::from_str_radix(part, 16).map_err(|_| wrong()))
            .collect::<Result<_, _>>()?;
        let bytes: [u8; N] = bytes.try_into().map_err(|_| wrong())?;
        bytes.encode(key);
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        key.push(raw);
        Ok(raw.len() == N)
    }
}

impl<K: IndexKey + ?Sized> IndexKey for &K {
    fn encode(&self, key: &mut KeyBuf) {
        (**self).encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        K::encode_text(text, key)
    }

    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        K::encode_text_prefix(text, key)
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        K::encode_raw(raw, key)
    }

    fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        K::encode_raw_bound(raw, key)
    }
}

/// `None` sorts before all values; its text is empty.
impl<K: IndexKey> IndexKey for Option<K> {
    fn encode(&self, key: &mut KeyBuf) {
        key.push(&[u8::from(self.is_some())]);
        if let Some(value) = self {
            value.encode(key);
        }
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        key.push(&[u8::from(!text.is_empty())]);
        if text.is_empty() { Ok(()) } else { K::encode_text(text, key) }
    }
}

macro_rules! tuples {
    ($($name:ident $field:tt),+) => {
        /// Sorted by the first part, then the next; as text the parts are joined by commas.
        impl<$($name: IndexKey),+> IndexKey for ($($name,)+) {
            fn encode(&self, key: &mut KeyBuf) {
                $(self.$field.encode(key);)+
            }
            fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
                let mut parts = text.split(',');
                let wrong = || KeyParseError { text: text.to_owned(), expected: "a list of the key's parts joined by `,`" };
                $($name::encode_text(parts.next().ok_or_else(wrong)?, key)?;)+
                if parts.next().is_some() { Err(wrong()) } else { Ok(()) }
            }
            /// Parses the leading parts; the last given one may be the beginning of a string.
            fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
                let mut parts = text.split(',').peekable();
                $(
                    let Some(part) = parts.next() else { return Ok(()) };
                    let last = parts.peek().is_none();
                    if last { $name::encode_text_prefix(part, key)? } else { $name::encode_text(part, key)? }
                )+
                Ok(())
            }
        }
    };
}
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);

macro_rules! string_prefixes {
    ($($prefix:ty => $key:ty;)*) => {$(
        impl PrefixOf<$key> for $prefix {
            fn encode_prefix(&self, key: &mut KeyBuf) {
                key.push_escaped(AsRef::<[u8]>::as_ref(self));
            }
        }
    )*};
}
string_prefixes! { str => str; str => String; str => &str; [u8] => [u8]; [u8] => &[u8]; }

impl<A: IndexKey, B> PrefixOf<(A, B)> for A {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.encode(key);
    }
}

impl<A: IndexKey, B, C> PrefixOf<(A, B, C)> for A {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.encode(key);
    }
}

impl<A: IndexKey, B: IndexKey, C> PrefixOf<(A, B, C)> for (A, B) {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.encode(key);
    }
}

#[cfg(test)]
#[path = "key/tests.rs"]
mod tests;
