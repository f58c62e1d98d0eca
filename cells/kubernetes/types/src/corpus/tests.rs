use std::collections::BTreeSet;

use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor, value::StrDeserializer};
use serde::{Deserializer, forward_to_deserialize_any};

use super::*;
use crate::schema::{Strictness, check};
use crate::{KindVisitor, Refusal, Resource, decode, with_type};

/// Fields of the schemas that the agent does not use, and the types omit.
const LEFT_OUT: &[&str] = &[
    "EndpointSlice.endpoints.targetRef",
    "EndpointSlice.ports.appProtocol",
    "Namespace.spec",
    "Namespace.status",
    "Node.status.conditions.lastHeartbeatTime",
    "Node.status.conditions.lastTransitionTime",
    "Node.status.conditions.message",
    "Service.spec.allocateLoadBalancerNodePorts",
    "Service.spec.externalName",
    "Service.spec.ipFamilyPolicy",
    "Service.spec.ports.appProtocol",
    "Service.spec.publishNotReadyAddresses",
    "Service.status.conditions",
    "metadata.deletionGracePeriodSeconds",
    "metadata.managedFields",
    "metadata.selfLink",
];

/// Returns the object with only the fields of its type.
struct Typed<'v>(&'v Value);

impl KindVisitor for Typed<'_> {
    type Output = Result<Value, Refusal>;

    fn visit<T: Resource>(self) -> Self::Output {
        Ok(with_type(&decode::<T>(self.0.to_string().as_bytes())?))
    }
}

#[test]
fn valid_objects_are_valid_and_survive() {
    for &kind in Kind::ALL {
        for seed in 0..50 {
            let object = valid(kind, seed);
            assert_eq!(check(kind, &object, Strictness::Manifest), [], "{object}");
            let once = kind.visit(Typed(&object)).unwrap();
            assert_eq!(kind.visit(Typed(&once)).unwrap(), once, "{object}");
        }
    }
}

#[test]
fn every_field_of_the_schemas_is_in_the_types_or_omitted_on_purpose() {
    let mut missing = BTreeSet::new();
    for &kind in Kind::ALL {
        let object = full(kind);
        assert_eq!(check(kind, &object, Strictness::Manifest), [], "{object}");
        lost(&object, &kind.visit(Typed(&object)).unwrap(), "", &mut |path| {
            missing.insert(if path.starts_with("metadata.") { path } else { format!("{kind}.{path}") });
        });
    }
    let expected: BTreeSet<String> = LEFT_OUT.iter().map(|path| path.to_string()).collect();
    assert_eq!(missing, expected);
}

/// Returns the paths at which the second value lacks or changes something of the first.
fn lost(whole: &Value, part: &Value, path: &str, report: &mut impl FnMut(String)) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (name, value) in whole {
                let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match part.get(name) {
                    Some(part) => lost(value, part, &below, report),
                    None => report(below),
                }
            }
        }
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            whole.iter().zip(part).for_each(|(whole, part)| lost(whole, part, path, report));
        }
        (whole, part) if whole == part => {}
        _ => report(path.to_owned()),
    }
}

#[test]
fn every_field_of_the_types_is_in_the_schemas() {
    struct Everything;
    impl KindVisitor for Everything {
        type Output = Value;

        fn visit<T: Resource>(self) -> Value {
            with_type(&T::deserialize(Probe).unwrap())
        }
    }
    for &kind in Kind::ALL {
        let mut object = kind.visit(Everything);
        let mut unknown = Vec::new();
        let meta = object["metadata"].take();
        outside(SCHEMAS.node(metadata()), &meta, "metadata", &mut unknown);
        let members = object.as_object_mut().unwrap();
        ["apiVersion", "kind", "metadata"].iter().for_each(|name| _ = members.remove(*name));
        outside(SCHEMAS.node(SCHEMAS.definition(kind).unwrap().root), &object, "", &mut unknown);
        assert_eq!(unknown, Vec::<String>::new(), "{kind}");
    }
}

/// Collects the paths of fields that are not in the schema.
fn outside(node: &Node, value: &Value, path: &str, unknown: &mut Vec<String>) {
    match (&node.shape, value) {
        (Shape::Object { fields, .. }, Value::Object(members)) => {
            for (name, value) in members {
                let path = format!("{path}.{name}");
                match fields.iter().find(|field| field.name == name) {
                    Some(field) => outside(SCHEMAS.node(field.node), value, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Shape::Map { value: node, .. }, Value::Object(members)) => {
            members.values().for_each(|value| outside(SCHEMAS.node(*node), value, path, unknown));
        }
        (Shape::List(item), Value::Array(items)) => {
            items.iter().for_each(|value| outside(SCHEMAS.node(*item), value, path, unknown));
        }
        _ => {}
    }
}

#[test]
fn every_mutant_is_refused_at_its_path() {
    for &kind in Kind::ALL {
        let good = full(kind);
        let mutants = mutants(kind, &good);
        assert!(mutants.len() > 20, "{kind} has {}", mutants.len());
        // Policies repeat the same structures in many places: a sample of the mutants suffices.
        let step = mutants.len() / 200 + 1;
        for mutant in mutants.iter().step_by(step) {
            let Mutant { fault, path, .. } = mutant;
            let object = mutant.of(&good);
            let is_reported =
                |problems: &[crate::Problem]| problems.iter().any(|problem| problem.path == *path);
            let problems = check(kind, &object, Strictness::Manifest);
            assert!(is_reported(&problems), "{kind}: {fault} at {path}: {problems:?}");
            match kind.visit(Typed(&object)) {
                Err(Refusal(problems)) => {
                    assert!(is_reported(&problems), "{kind}: {fault} at {path}: {problems:?}")
                }
                // Servers validate lengths, enumerations and formats, so a decoder checks only types.
                Ok(_) => assert!(
                    !["no object", "no map", "no list", "no string", "no number", "a fraction"]
                        .contains(fault)
                        || untyped(kind, path),
                    "{kind}: {fault} at {path} is decoded"
                ),
            }
        }
    }
}

/// Whether the type stores the value untyped, or omits the field.
fn untyped(kind: Kind, path: &str) -> bool {
    let mut plain = path.to_owned();
    while let Some(at) = plain.find('[') {
        let end = plain[at..].find(']').map_or(plain.len(), |end| at + end + 1);
        plain.replace_range(at..end, "");
    }
    let rules = matches!(kind, Kind::CiliumNetworkPolicy | Kind::CiliumClusterwideNetworkPolicy);
    let kept = rules && plain.starts_with("spec") || plain == "spec.resources";
    let left_out = |field: &&str| plain.starts_with(field) || format!("{kind}.{plain}").starts_with(field);
    kept || LEFT_OUT.iter().any(left_out)
}

#[test]
fn broken_texts_are_refused_or_accepted_by_rule() {
    for &kind in Kind::ALL {
        struct Decoded<'t>(&'t [u8]);
        impl KindVisitor for Decoded<'_> {
            type Output = Result<(), Refusal>;

            fn visit<T: Resource>(self) -> Self::Output {
                decode::<T>(self.0).map(drop)
            }
        }
        for (fault, text, refused) in broken(&valid(kind, 1)) {
            let decoded = kind.visit(Decoded(&text));
            assert_eq!(decoded.is_err(), refused, "{kind}: {fault}: {decoded:?}");
            assert!(
                decoded.err().is_none_or(|refusal| !refusal.0.is_empty() && refusal.to_string().len() < 4096)
            );
        }
    }
}

/// Deserializes every type with a non-empty value in each of its fields.
struct Probe;

/// Yields each name with a value, in order.
struct All<'n>(std::slice::Iter<'n, &'static str>);

impl<'de> MapAccess<'de> for All<'_> {
    type Error = serde::de::value::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        let name: Option<StrDeserializer<'_, Self::Error>> =
            self.0.next().map(|name| name.into_deserializer());
        name.map(|name| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        seed.deserialize(Probe)
    }
}

struct One(bool);

impl<'de> SeqAccess<'de> for One {
    type Error = serde::de::value::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Self::Error> {
        if std::mem::replace(&mut self.0, true) { Ok(None) } else { seed.deserialize(Probe).map(Some) }
    }
}

impl<'de> Deserializer<'de> for Probe {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_str("2026-01-31T12:00:00Z")
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_bool(true)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(One(false))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_map(All(["x"].iter()))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_map(All(fields.iter()))
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_u8(1)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_u16(1)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_u64(1)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_i32(1)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_i64(1)
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u32 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct enum
        identifier ignored_any
    }
}
