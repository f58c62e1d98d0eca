//! The trait of all types of objects.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::schema::{self, Strictness};
use crate::{Kind, ObjectMeta, Problem, Refusal};

/// A type of cluster objects.
pub trait Resource:
    Serialize + DeserializeOwned + Clone + Default + Debug + PartialEq + Send + Sync + 'static
{
    /// Its kind.
    const KIND: Kind;

    /// Returns the metadata.
    fn metadata(&self) -> &ObjectMeta;

    /// Returns the metadata for changes.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Parses JSON; [`decode`] also reports all problems.
    fn from_json(json: &[u8]) -> serde_json::Result<Self>;

    /// Serializes to JSON.
    fn to_json(&self) -> Vec<u8>;
}

// `keeps` names the field of [`UnknownMembers`](crate::UnknownMembers), of types that have one.
macro_rules! resource {
    ($($type:ident $(keeps $unknown:ident)?),* $(,)?) => {
        $(impl $crate::Resource for $type {
            const KIND: $crate::Kind = $crate::Kind::$type;

            fn metadata(&self) -> &$crate::ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut $crate::ObjectMeta {
                &mut self.metadata
            }

            // Instantiated here and not in the callers' crates, so that the program has one decoder and one encoder of
            // each type.
            fn from_json(json: &[u8]) -> serde_json::Result<Self> {
                $crate::resource::resource!(@decode json $($unknown)?)
            }

            fn to_json(&self) -> Vec<u8> {
                // Keys are strings and numbers are finite, so serialization cannot fail.
                serde_json::to_vec(self).unwrap_or_default()
            }
        })*
    };
    (@decode $json:ident) => {
        $crate::strict::from_slice($json)
    };
    (@decode $json:ident $unknown:ident) => {{
        let (object, $unknown) = $crate::strict::from_slice_with_unknown($json)?;
        Ok(Self { $unknown, ..object })
    }};
}
pub(crate) use resource;

/// Decodes an object of a source. The error has the paths of all problems.
pub fn decode<T: Resource>(json: &[u8]) -> Result<T, Refusal> {
    let object = T::from_json(json).map_err(|error| refusal(T::KIND, json, &error))?;
    match object.metadata().name.is_empty() {
        true => Err(Problem::new("metadata.name", "is missing").into()),
        false => Ok(object),
    }
}

/// Returns the problems of an object that cannot be decoded: all that the schema finds, else the decoder's error.
#[cold]
fn refusal(kind: Kind, json: &[u8], error: &serde_json::Error) -> Refusal {
    match serde_json::from_slice(json) {
        Err(error) => Problem::new("", format_args!("is no JSON: {error}")).into(),
        Ok(value) => match schema::check(kind, &value, Strictness::Server) {
            problems if problems.is_empty() => Problem::new("", error).into(),
            problems => Refusal(problems),
        },
    }
}

/// Returns the object with its kind and version, as printed by `kubectl get -o json`.
pub fn with_type<T: Resource>(object: &T) -> Value {
    let mut value: Value = serde_json::from_slice(&object.to_json()).unwrap_or_default();
    if let Value::Object(members) = &mut value {
        members.insert("apiVersion".into(), T::KIND.api_version().into());
        members.insert("kind".into(), T::KIND.name().into());
    }
    value
}
