//! Structs that are decoded and encoded as by Go's `encoding/json`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

/// Declares structs of objects. A field's name in JSON is its own in camel case (in kebab case after `kebab pub
/// struct`), or that of `#[serde(rename)]`; `null` and a missing field are the default; unknown fields are skipped. A
/// field declared with `pub` is written unless it is empty (Go's `omitempty`), one with `always pub` is always written:
/// an empty list or map as `null`, like a nil one in Go. One declared with `unknown pub`
/// has the members of no other field: [`resource!`](crate::resource::resource) of such a type sets it.
macro_rules! slim {
    () => {};
    ($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* } $($rest:tt)*) => {
        $crate::slim::slim!(@fields ["camelCase" $(#[$meta])* $name] [] $($fields)*);
        $crate::slim::slim!($($rest)*);
    };
    ($(#[$meta:meta])* kebab pub struct $name:ident { $($fields:tt)* } $($rest:tt)*) => {
        $crate::slim::slim!(@fields ["kebab-case" $(#[$meta])* $name] [] $($fields)*);
        $crate::slim::slim!($($rest)*);
    };
    (@fields [$($head:tt)*] [$($out:tt)*] $(#[$meta:meta])* always pub $field:ident: $type:ty, $($rest:tt)*) => {
        $crate::slim::slim!(@fields [$($head)*] [
            $($out)*
            $(#[$meta])*
            #[serde(
                default,
                deserialize_with = "crate::slim::null",
                serialize_with = "crate::slim::always"
            )]
            pub $field: $type,
        ] $($rest)*);
    };
    (@fields [$($head:tt)*] [$($out:tt)*] $(#[$meta:meta])* unknown pub $field:ident: $type:ty, $($rest:tt)*) => {
        $crate::slim::slim!(@fields [$($head)*] [
            $($out)*
            $(#[$meta])*
            #[serde(flatten, skip_deserializing)]
            pub $field: $type,
        ] $($rest)*);
    };
    (@fields [$($head:tt)*] [$($out:tt)*] $(#[$meta:meta])* pub $field:ident: $type:ty, $($rest:tt)*) => {
        $crate::slim::slim!(@fields [$($head)*] [
            $($out)*
            $(#[$meta])*
            #[serde(
                default,
                deserialize_with = "crate::slim::null",
                skip_serializing_if = "crate::slim::Empty::is_empty"
            )]
            pub $field: $type,
        ] $($rest)*);
    };
    (@fields [$case:literal $(#[$meta:meta])* $name:ident] [$($out:tt)*]) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = $case)]
        pub struct $name { $($out)* }

        impl $crate::slim::Nil for $name {}
    };
}
pub(crate) use slim;

/// The types of optional fields.
pub(crate) trait Nil {
    /// Whether the value is nil in Go, which is written as `null`.
    fn is_nil(&self) -> bool {
        false
    }

    /// Frees spare capacity that was reserved for parsing.
    fn trim(&mut self) {}
}

impl<T> Nil for Vec<T> {
    fn is_nil(&self) -> bool {
        self.is_empty()
    }

    fn trim(&mut self) {
        self.shrink_to_fit();
    }
}

impl<K, V> Nil for BTreeMap<K, V> {
    fn is_nil(&self) -> bool {
        self.is_empty()
    }
}

impl<T> Nil for Option<T> {}
impl Nil for SmolStr {}
impl Nil for Box<str> {}
impl Nil for IntOrString {}

/// Serializes a field that is never omitted.
pub(crate) fn always<T: Nil + Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    match value.is_nil() {
        true => to.serialize_none(),
        false => value.serialize(to),
    }
}

/// Values that Go's `omitempty` omits when empty.
pub(crate) trait Empty {
    fn is_empty(&self) -> bool;
}

impl<T> Empty for Option<T> {
    fn is_empty(&self) -> bool {
        self.is_none()
    }
}

impl<T> Empty for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> Empty for BTreeMap<K, V> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Empty for Box<str> {
    fn is_empty(&self) -> bool {
        str::is_empty(self)
    }
}

impl Empty for SmolStr {
    fn is_empty(&self) -> bool {
        str::is_empty(self)
    }
}

macro_rules! empty_if_default {
    ($($type:ty),*) => {
        $(impl Nil for $type {}

        impl Empty for $type {
            fn is_empty(&self) -> bool {
                *self == <$type>::default()
            }
        })*
    };
}
empty_if_default!(bool, u8, u16, u32, u64, i32, i64);

/// Deserializes a value; `null` is the default. Lists are trimmed: most have one item, and serde reserves four.
pub(crate) fn null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default + Nil>(
    from: D,
) -> Result<T, D::Error> {
    let mut value = Option::<T>::deserialize(from)?.unwrap_or_default();
    value.trim();
    Ok(value)
}

/// A list that nearly always has one item, which takes no allocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SmallList<T>(Items<T>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Items<T> {
    None,
    One(T),
    Several(Box<[T]>),
}

const _: () = assert!(size_of::<SmallList<SmolStr>>() == size_of::<SmolStr>());

impl<T> Default for SmallList<T> {
    fn default() -> SmallList<T> {
        SmallList(Items::None)
    }
}

impl<T> Deref for SmallList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Items::None => &[],
            Items::One(item) => slice::from_ref(item),
            Items::Several(items) => items,
        }
    }
}

impl<T> DerefMut for SmallList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Items::None => &mut [],
            Items::One(item) => slice::from_mut(item),
            Items::Several(items) => items,
        }
    }
}

impl<T> FromIterator<T> for SmallList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> SmallList<T> {
        let mut items = items.into_iter();
        let Some(first) = items.next() else { return SmallList::default() };
        match items.next() {
            None => SmallList(Items::One(first)),
            Some(second) => SmallList(Items::Several([first, second].into_iter().chain(items).collect())),
        }
    }
}

impl<T, const N: usize> From<[T; N]> for SmallList<T> {
    fn from(items: [T; N]) -> SmallList<T> {
        items.into_iter().collect()
    }
}

impl<'l, T> IntoIterator for &'l SmallList<T> {
    type Item = &'l T;
    type IntoIter = slice::Iter<'l, T>;

    fn into_iter(self) -> slice::Iter<'l, T> {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for SmallList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl<T: Serialize> Serialize for SmallList<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for SmallList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SmallList<T>, D::Error> {
        Ok(Vec::deserialize(from)?.into_iter().collect())
    }
}

impl<T> Nil for SmallList<T> {
    fn is_nil(&self) -> bool {
        <[T]>::is_empty(self)
    }
}

impl<T> Empty for SmallList<T> {
    fn is_empty(&self) -> bool {
        <[T]>::is_empty(self)
    }
}

/// A large part that few objects have: a pointer, none for the default.
#[derive(Clone, PartialEq)]
pub struct Rare<T>(Option<Box<T>>);

impl<T> Rare<T> {
    /// Returns the part; `None` if it is the default.
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Returns the part for changes; `None` if it is the default.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T> Default for Rare<T> {
    fn default() -> Rare<T> {
        Rare(None)
    }
}

impl<T: Default + PartialEq> From<T> for Rare<T> {
    fn from(part: T) -> Rare<T> {
        Rare((part != T::default()).then(|| Box::new(part)))
    }
}

impl<T: fmt::Debug + Default> fmt::Debug for Rare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(part) => part.fmt(f),
            None => T::default().fmt(f),
        }
    }
}

impl<T: Serialize + Default> Serialize for Rare<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(part) => part.serialize(to),
            None => T::default().serialize(to),
        }
    }
}

impl<'de, T: Deserialize<'de> + Default + PartialEq> Deserialize<'de> for Rare<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Rare<T>, D::Error> {
        T::deserialize(from).map(Rare::from)
    }
}

impl<T> Nil for Rare<T> {}

impl<T> Empty for Rare<T> {
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// A number or a name, as ports are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number.
    Int(i32),
    /// A name.
    String(SmolStr),
}

impl Default for IntOrString {
    fn default() -> IntOrString {
        IntOrString::Int(0)
    }
}
