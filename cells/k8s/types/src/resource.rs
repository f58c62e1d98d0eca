//! What all types of objects have in common.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Kind, ObjectMeta, Problem, Refusal};

/// A type of cluster objects.
pub trait Resource:
    Serialize + DeserializeOwned + Clone + Default + Debug + PartialEq + Send + Sync + 'static
{
    /// Its kind.
    const KIND: Kind;

    /// Name, labels and so on.
    fn metadata(&self) -> &ObjectMeta;

    /// The same, to be changed.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
}

macro_rules! resource {
    ($($type:ident),* $(,)?) => {
        $(impl $crate::Resource for $type {
            const KIND: $crate::Kind = $crate::Kind::$type;

            fn metadata(&self) -> &$crate::ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut $crate::ObjectMeta {
                &mut self.metadata
            }
        })*
    };
}
pub(crate) use resource;

/// Decodes an object as a source has it.
pub fn decode<T: Resource>(json: &[u8]) -> Result<T, Refusal> {
    let object: T = serde_json::from_slice(json).map_err(|error| Problem::new("", error))?;
    match object.metadata().name.is_empty() {
        true => Err(Problem::new("metadata.name", "is missing").into()),
        false => Ok(object),
    }
}

/// The type of an object, as manifests and single answers have it. Kept in the type, not in each object.
#[derive(Serialize)]
pub struct TypeMeta {
    /// The kind's name.
    pub kind: &'static str,
    /// Its group and version.
    #[serde(rename = "apiVersion")]
    pub api_version: &'static str,
}

/// The object with its kind and version before it, as `kubectl get -o json` shows it.
pub fn with_type<T: Resource>(object: &T) -> Value {
    #[derive(Serialize)]
    struct Typed<'a, T> {
        #[serde(flatten)]
        type_meta: TypeMeta,
        #[serde(flatten)]
        object: &'a T,
    }
    let type_meta = TypeMeta { kind: T::KIND.name(), api_version: T::KIND.api_version() };
    // Keys are strings and numbers are finite: nothing here can fail to be JSON.
    serde_json::to_value(Typed { type_meta, object }).unwrap_or_default()
}
