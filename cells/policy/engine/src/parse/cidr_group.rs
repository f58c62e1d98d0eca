//! Parses references of CIDR rules to CIDR groups.

use ipnetwork::IpNetwork;
use k8s_types::names;
use k8s_types::selector::Test;
use labels::CIDR;

use super::cursor::{Field, Problems, quoted};
use super::selectors::LabelSelector;
use crate::groups::{CIDR_GROUP, name_key, value_key};
use crate::selector::{Requirement, Selector};

/// Maximum number of alternatives that a `cidrGroupSelector` with several values stands for.
const MAX_ALTERNATIVES: usize = 64;

/// Reads a `cidrGroupRef`: the name of a group, which need not exist yet.
pub(super) fn by_name(field: &Field<'_>, except: &[IpNetwork], problems: &mut Problems) -> Option<Selector> {
    let name = field.text(problems)?;
    if names::dns_subdomain(name).is_err() {
        let reason = format!("{}: not the name of a group", quoted(field.value));
        problems.add(&field.path, reason, "lower case letters, digits, dashes and dots, as in metadata.name");
        return None;
    }
    Some(Selector::Labels(with_exceptions(vec![requirement(name_key(name), Test::Exists)], except)))
}

/// Reads a `cidrGroupSelector`: groups by their labels. A requirement with several values gives several selectors.
pub(super) fn by_labels(field: &Field<'_>, except: &[IpNetwork], problems: &mut Problems) -> Vec<Selector> {
    let Some(selector) = LabelSelector::read_k8s(field, problems) else { return Vec::new() };
    let mut alternatives = vec![Vec::new()];
    let mut is_positive = false;
    for Requirement { key, test, .. } in selector.into_requirements() {
        is_positive |= matches!(test, Test::Equals(_) | Test::In(_) | Test::Exists);
        match test {
            Test::Equals(value) => and(&mut alternatives, requirement(value_key(&key, &value), Test::Exists)),
            Test::NotIn(values) => {
                for value in values {
                    and(&mut alternatives, requirement(value_key(&key, &value), Test::DoesNotExist));
                }
            }
            test @ (Test::Exists | Test::DoesNotExist) => and(&mut alternatives, requirement(key, test)),
            Test::In(values) => {
                if alternatives.len() * values.len() > MAX_ALTERNATIVES {
                    let reason = format!("stands for more than {MAX_ALTERNATIVES} alternatives");
                    problems.add(&field.path, reason, "make several elements");
                    return Vec::new();
                }
                let one = |value: &String| requirement(value_key(&key, value), Test::Exists);
                let each = |before: &Vec<Requirement>| {
                    let before = before.clone();
                    values.iter().map(move |value| [before.clone(), vec![one(value)]].concat())
                };
                alternatives = alternatives.iter().flat_map(each).collect();
            }
        }
    }
    if !is_positive {
        // Requirements that a label is absent hold for all identities outside of groups, pods included.
        problems.add(&field.path, "names no label that the groups have", "use matchLabels, In or Exists");
        return Vec::new();
    }
    alternatives.into_iter().map(|all| Selector::Labels(with_exceptions(all, except))).collect()
}

/// Adds a requirement to each alternative.
fn and(alternatives: &mut [Vec<Requirement>], requirement: Requirement) {
    alternatives.iter_mut().for_each(|all| all.push(requirement.clone()));
}

fn requirement(key: String, test: Test) -> Requirement {
    Requirement { source: CIDR_GROUP.to_owned(), key, test }
}

/// Adds the requirements that the prefix of an identity lies in none of the exceptions.
fn with_exceptions(mut all: Vec<Requirement>, except: &[IpNetwork]) -> Vec<Requirement> {
    let outside = |prefix: &IpNetwork| Requirement {
        source: CIDR.to_owned(),
        key: prefix.to_string(),
        test: Test::DoesNotExist,
    };
    all.extend(except.iter().map(outside));
    all
}
