//! Encoding and decoding of fields: those that are omitted when empty, and those that are always written.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// Defines models: for each field its JSON name, its name and its type, which determines its encoding when
/// empty. The fields stand in the byte order of their JSON names.
macro_rules! models {
    ($($(#[$meta:meta])* $name:ident { $($json:literal $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
        pub struct $name {
            $(
                #[doc = concat!("`", $json, "`")]
                #[serde(rename = $json, skip_serializing_if = "crate::wire::Field::left_out")]
                pub $field: $type,
            )*
        }

        impl crate::wire::Field for $name {}

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(crate::wire::ModelVisitor::default())
            }
        }

        impl crate::wire::Model for $name {
            const NAMES: &'static [&'static str] = &[$($json),*];

            fn read<'de, A>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>
            where
                A: serde::de::MapAccess<'de>,
            {
                match name {
                    $($json => self.$field = map.next_value::<Option<_>>()?.unwrap_or_default(),)*
                    _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
                }
                Ok(())
            }
        }
    )*};
}
pub(crate) use models;

/// The requirements of decoding on a model.
pub(crate) trait Model: Default {
    /// The JSON names of the fields in their order.
    const NAMES: &'static [&'static str];

    /// Reads the value that follows `name`: `null` is the empty value, an unknown name is passed over.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Reads a model from an object. A derived reader would take a list for one, too.
pub(crate) struct ModelVisitor<M>(PhantomData<M>);

impl<M> Default for ModelVisitor<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<'de, M: Model> Visitor<'de> for ModelVisitor<M> {
    type Value = M;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match M::NAMES {
            [first, .., last] => write!(f, "an object with {first} .. {last}"),
            names => write!(f, "an object with {}", names.concat()),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<M, A::Error> {
        let mut model = M::default();
        while let Some(name) = map.next_key::<String>()? {
            model.read(&name, &mut map)?;
        }
        Ok(model)
    }
}

/// A type that a field of a model can have.
pub(crate) trait Field {
    /// Whether the field is not written at all. Most types are always written.
    fn left_out(&self) -> bool {
        false
    }
}

impl Field for String {
    fn left_out(&self) -> bool {
        self.is_empty()
    }
}

impl Field for bool {
    fn left_out(&self) -> bool {
        !self
    }
}

impl<T> Field for Option<T> {
    fn left_out(&self) -> bool {
        self.is_none()
    }
}

impl<T> Field for Vec<T> {
    fn left_out(&self) -> bool {
        self.is_empty()
    }
}

impl<V> Field for BTreeMap<String, V> {
    fn left_out(&self) -> bool {
        self.is_empty()
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Field for $number {
            fn left_out(&self) -> bool {
                *self == <$number>::default()
            }
        }
    )*};
}
numbers! { i64 u16 u64 f64 }

/// A list that is always written: `null` if it is absent, `[]` if it is empty.
///
/// The default is absent. `into()` from a `Vec` and `collect()` return a present list, possibly an empty one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct List<T>(pub Option<Vec<T>>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> Self {
        Self(Some(items))
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(Some(items.into_iter().collect()))
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T> Field for List<T> {}

/// A value that is written even when it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Required<T>(pub T);

impl<T> From<T> for Required<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl From<&str> for Required<String> {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl<T> Deref for Required<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Field for Required<T> {}

#[cfg(test)]
mod tests {
    use super::Model;
    use crate::*;

    fn sorted<M: Model>() {
        let mut names = M::NAMES.to_vec();
        names.sort_unstable();
        assert_eq!(names, M::NAMES);
    }

    #[test]
    fn fields_are_in_the_order_of_their_names() {
        sorted::<EndpointChangeRequest>();
        sorted::<EndpointStatus>();
        sorted::<EndpointPolicy>();
        sorted::<DaemonConfigurationStatus>();
        sorted::<StatusResponse>();
        sorted::<KubeProxyReplacementFeatures>();
        sorted::<RemoteCluster>();
        sorted::<ControllerRuns>();
        sorted::<IpamAddressResponse>();
        sorted::<AddressPair>();
        sorted::<IpListEntry>();
        sorted::<NodeElement>();
        sorted::<LoadResponse>();
        sorted::<NodeStatus>();
        sorted::<BpfMapEntry>();
        sorted::<ServiceSpec>();
        sorted::<ServiceFlags>();
        sorted::<BackendAddress>();
    }

    #[test]
    fn absent_and_empty_lists_differ() {
        let none = BpfMapList::default();
        assert_eq!(serde_json::to_string(&none).unwrap(), r#"{"maps":null}"#);
        let empty = BpfMapList { maps: vec![].into() };
        assert_eq!(serde_json::to_string(&empty).unwrap(), r#"{"maps":[]}"#);
        assert_eq!(serde_json::from_str::<BpfMapList>("{}").unwrap(), none);
        assert_eq!(serde_json::from_str::<BpfMapList>(r#"{"maps":null}"#).unwrap(), none);
        assert_eq!(serde_json::from_str::<BpfMapList>(r#"{"maps":[]}"#).unwrap(), empty);
    }

    #[test]
    fn required_values_are_written_when_empty() {
        let entry = IpListEntry::default();
        assert_eq!(serde_json::to_string(&entry).unwrap(), r#"{"cidr":"","identity":0}"#);
        let response = IpamResponse::default();
        assert_eq!(serde_json::to_string(&response).unwrap(), r#"{"address":{},"host-addressing":{}}"#);
    }
}
