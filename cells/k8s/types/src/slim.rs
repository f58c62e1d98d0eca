//! Structs that are read and written as Go's `encoding/json` does.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use smol_str::SmolStr;

/// Declares structs of objects. A field's name in JSON is its own in camel case, or what `#[serde(rename)]` says; `null`
/// and absence are its default; unknown fields are skipped. A field that begins with `pub` is written unless it is empty
/// (Go's `omitempty`), one that begins with `always pub` is written in any case.
macro_rules! slim {
    () => {};
    ($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* } $($rest:tt)*) => {
        $crate::slim::slim!(@fields [$(#[$meta])* pub struct $name] [] $($fields)*);
        $crate::slim::slim!($($rest)*);
    };
    (@fields [$($head:tt)*] [$($out:tt)*] $(#[$meta:meta])* always pub $field:ident: $type:ty, $($rest:tt)*) => {
        $crate::slim::slim!(@fields [$($head)*] [
            $($out)*
            $(#[$meta])*
            #[serde(default, deserialize_with = "crate::slim::null")]
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
    (@fields [$($head:tt)*] [$($out:tt)*]) => {
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        $($head)* { $($out)* }
    };
}
pub(crate) use slim;

/// What Go leaves out with `omitempty`.
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

impl Empty for SmolStr {
    fn is_empty(&self) -> bool {
        str::is_empty(self)
    }
}

macro_rules! empty_if_default {
    ($($type:ty),*) => {
        $(impl Empty for $type {
            fn is_empty(&self) -> bool {
                *self == <$type>::default()
            }
        })*
    };
}
empty_if_default!(bool, u16, u32, u64, i32, i64);

/// `null` is the default.
pub(crate) fn null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// A number or a name, as ports are given.
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
