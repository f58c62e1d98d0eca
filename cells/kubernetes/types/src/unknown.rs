//! Members of objects that only another version of their definition has.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Serialize, Serializer, forward_to_deserialize_any};
use serde_json::value::RawValue;
use smol_str::SmolStr;

/// The members of an object besides those of its type, its `apiVersion` and its `kind`, as texts. A pointer, null without such
/// members.
///
/// An update replaces the whole object: a type whose objects are updated from a table keeps them, lest an update by this
/// version removes members that another version has written.
#[derive(Clone, Default)]
pub struct UnknownMembers(Option<Box<Members>>);

type Members = Vec<(SmolStr, Box<RawValue>)>;

impl UnknownMembers {
    /// Returns names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().flat_map(|members| members.iter()).map(|(name, value)| (name.as_str(), &**value))
    }

    /// Adds a member; of several with one name the last counts.
    fn insert(&mut self, name: SmolStr, value: Box<RawValue>) {
        let members = self.0.get_or_insert_default();
        members.retain(|(known, _)| *known != name);
        members.push((name, value));
    }
}

impl PartialEq for UnknownMembers {
    fn eq(&self, other: &UnknownMembers) -> bool {
        let texts = |(name, value): (_, &RawValue)| (name, value.get().to_owned());
        self.iter().map(texts).eq(other.iter().map(texts))
    }
}

impl fmt::Debug for UnknownMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for UnknownMembers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter())
    }
}

/// A deserializer of a struct that collects the members which it does not have.
pub(crate) struct Collecting<'u, D>(pub(crate) D, pub(crate) &'u mut UnknownMembers);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Collecting<'_, D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Struct { visitor, fields, unknown: self.1 })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The visitor of a struct, and the access to its members.
struct Struct<'u, V> {
    visitor: V,
    fields: &'static [&'static str],
    unknown: &'u mut UnknownMembers,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Struct<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        let Struct { visitor, fields, unknown } = self;
        visitor.visit_map(Struct { visitor: members, fields, unknown })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Struct<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            let Some(name) = self.visitor.next_key_seed(PhantomData::<SmolStr>)? else { return Ok(None) };
            match name.as_str() {
                known if self.fields.contains(&known) => {
                    return seed.deserialize(StrDeserializer::new(known)).map(Some);
                }
                "apiVersion" | "kind" => _ = self.visitor.next_value_seed(PhantomData::<IgnoredAny>)?,
                _ => {
                    let value = self.visitor.next_value_seed(PhantomData::<Box<RawValue>>)?;
                    self.unknown.insert(name, value);
                }
            }
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.visitor.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cilium::{CiliumEndpointSlice, CiliumIdentity};
    use crate::{Resource, decode, with_type};

    #[test]
    fn members_of_a_newer_version_are_kept_and_take_a_pointer() {
        let mut object = json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {"name": "1001"},
            "security-labels": {"k8s:app": "web"},
        });
        let bare = decode::<CiliumIdentity>(object.to_string().as_bytes()).unwrap();
        assert_eq!((with_type(&bare), bare.unknown.iter().count()), (object.clone(), 0));
        assert_eq!(size_of_val(&bare.unknown), size_of::<usize>());
        object["spec"] = json!({"weight": [-1, 1.5, null, {"deep": u64::MAX}]});
        object["empty"] = json!(null);
        let identity = decode::<CiliumIdentity>(object.to_string().as_bytes()).unwrap();
        assert_eq!(
            (with_type(&identity), json!(identity)["spec"].clone()),
            (object.clone(), object["spec"].clone())
        );
        assert_ne!(identity, bare);
        assert_eq!(identity, identity.clone());

        let slice = json!({"metadata": {"name": "ces-1"}, "endpoints": null, "topology": {"zone": "a"}});
        let decoded = CiliumEndpointSlice::from_json(slice.to_string().as_bytes()).unwrap();
        assert_eq!(json!(decoded), slice);
        let twice = CiliumIdentity::from_json(br#"{"a": 1, "a": 2}"#).unwrap();
        assert_eq!(json!(twice)["a"], 2);
        for broken in [r#"["a"]"#, r#"{"security-labels": {"a": 1}}"#, r#"{"metadata": []}"#, r#"{"a": tru}"#]
        {
            assert!(CiliumIdentity::from_json(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
