//! Keys of objects in the graph: a Rust type and how it is requested.

use std::any::{TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The key of a dependency or a result: one value of a type, a group of them, or a configuration struct.
///
/// Keys compare by type identity; the name is for messages only.
#[derive(Clone, Copy)]
pub struct Key {
    id: TypeId,
    name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    One,
    Group,
    Config,
}

impl Key {
    /// Returns the key of `Arc<T>`.
    pub fn of<T: ?Sized + 'static>() -> Self {
        Key { id: TypeId::of::<T>(), name: type_name::<T>(), kind: Kind::One }
    }

    /// Returns the key of `Group<T>`.
    pub fn group<T: 'static>() -> Self {
        Key { id: TypeId::of::<T>(), name: type_name::<T>(), kind: Kind::Group }
    }

    /// Returns the key of `Config<T>`.
    pub fn config<T: 'static>() -> Self {
        Key { id: TypeId::of::<T>(), name: type_name::<T>(), kind: Kind::Config }
    }

    /// Whether this requests all members of a group.
    pub fn is_group(&self) -> bool {
        self.kind == Kind::Group
    }

    /// Whether this is a configuration struct.
    pub fn is_config(&self) -> bool {
        self.kind == Kind::Config
    }

    /// Returns the full name of the type inside, as the compiler prints it.
    pub fn type_name(&self) -> &'static str {
        self.name
    }

    /// Returns the key without module paths: `Arc<dyn KvStore>`.
    pub fn short(&self) -> String {
        short(&self.to_string())
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.kind == other.kind
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
        state.write_u8(self.kind as u8);
    }
}

/// A map by key. A `TypeId` is a hash already, and no input can choose types that collide.
pub(crate) type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<KeyHasher>>;

#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::One => write!(f, "Arc<{}>", self.name),
            Kind::Group => write!(f, "Group<{}>", self.name),
            Kind::Config => write!(f, "Config<{}>", self.name),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the last path segment of every identifier: `alloc::sync::Arc<dyn a::b::C>` becomes `Arc<dyn C>`.
pub(crate) fn short(name: &str) -> String {
    let (mut out, mut segment) = (String::new(), String::new());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ':' && chars.peek() == Some(&':') {
            chars.next();
            segment.clear();
        } else if c.is_alphanumeric() || c == '_' {
            segment.push(c);
        } else {
            out.push_str(&segment);
            segment.clear();
            out.push(c);
        }
    }
    out + &segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_keep_structure() {
        assert_eq!(short("alloc::sync::Arc<dyn a::b::C>"), "Arc<dyn C>");
        assert_eq!(short("(a::B, c::D<e::F>)"), "(B, D<F>)");
        assert_eq!(Key::group::<std::sync::Arc<str>>().short(), "Group<Arc<str>>");
    }

    #[test]
    fn kinds_are_different_keys() {
        assert_ne!(Key::of::<u8>(), Key::group::<u8>());
        assert_ne!(Key::of::<u8>(), Key::config::<u8>());
        assert_eq!(Key::of::<u8>(), Key::of::<u8>());
    }
}
