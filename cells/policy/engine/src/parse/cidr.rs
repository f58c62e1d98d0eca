//! Parses prefixes of policies, as strictly as Cilium does.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::Context;
use super::cidr_group::{by_labels, by_name};
use super::cursor::{Field, Object, Problems, quoted};
use crate::model::World;
use crate::selector::{CidrSelector, Selector, contains};

/// Parses a prefix such as `10.0.0.0/8`: no net mask, no zone, no leading zeros; host bits may be set.
fn parse_prefix(text: &str) -> Option<IpNetwork> {
    let (address, length) = text.split_once('/')?;
    let canonical = length.bytes().all(|b| b.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    if !canonical {
        return None;
    }
    IpNetwork::new(address.parse().ok()?, length.parse().ok()?).ok()
}

/// Reads an element of `fromCIDR` or `toCIDR`: a prefix or an address.
pub(super) fn cidr(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Selector> {
    let text = field.text(problems)?;
    let address = text.parse::<IpAddr>().ok();
    let Some(prefix) = address.map(IpNetwork::from).or_else(|| parse_prefix(text)) else {
        let reason = format!("{}: not an address or prefix", quoted(field.value));
        problems.add(&field.path, reason, "write it as 192.0.2.0/24 or 2001:db8::1");
        return None;
    };
    Some(Selector::Cidr(CidrSelector {
        prefix,
        except: [].into(),
        world: World::of(prefix.ip(), context.settings.ipv4, context.settings.ipv6),
        bare: address.is_some(),
    }))
}

/// Reads an element of `fromCIDRSet` or `toCIDRSet`: a prefix, or CIDR groups, and exceptions. Several selectors are
/// alternatives.
pub(super) fn cidr_rule(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Vec<Selector> {
    let Some(rule) = field.object(problems) else { return Vec::new() };
    rule.check_names(problems, &["cidr", "cidrGroupRef", "cidrGroupSelector", "except"], &[]);
    // Go's API types cannot distinguish an empty string from an absent field.
    let given = |name| rule.field(name).filter(|field| field.value.as_str() != Some(""));
    match (given("cidr"), given("cidrGroupRef"), given("cidrGroupSelector")) {
        (None, None, None) => {
            problems.add(&rule.path_of("cidr"), "missing", "name a prefix, or groups of prefixes");
            Vec::new()
        }
        (Some(cidr), None, None) => block(&rule, Some(&cidr), context, problems).into_iter().collect(),
        (None, Some(group), None) => match exceptions(&rule, None, problems) {
            Some(except) => by_name(&group, &except, problems).into_iter().collect(),
            None => Vec::new(),
        },
        (None, None, Some(groups)) => match exceptions(&rule, None, problems) {
            Some(except) => by_labels(&groups, &except, problems),
            None => Vec::new(),
        },
        _ => {
            problems.add(
                &rule.path,
                "more than one of cidr, cidrGroupRef and cidrGroupSelector",
                "make each an element of its own",
            );
            Vec::new()
        }
    }
}

/// Reads a network of a ClusterNetworkPolicy: a prefix.
pub(super) fn network(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Selector> {
    let prefix = prefix_field(field, problems)?;
    let world = World::of(prefix.ip(), context.settings.ipv4, context.settings.ipv6);
    Some(Selector::Cidr(CidrSelector { prefix, except: [].into(), world, bare: false }))
}

/// Reads an `ipBlock` of a NetworkPolicy: a prefix and its exceptions.
pub(super) fn ip_block(
    field: &Field<'_>,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Option<Selector> {
    let object = field.object(problems)?;
    object.check_names(problems, &["cidr", "except"], &[]);
    let cidr = object.field("cidr");
    if cidr.is_none() {
        problems.add(&object.path_of("cidr"), "missing", "name a prefix");
    }
    block(&object, cidr.as_ref(), context, problems)
}

/// Reads a prefix, with the exceptions beside it.
fn block(
    rule: &Object<'_>,
    cidr: Option<&Field<'_>>,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Option<Selector> {
    let prefix = cidr.and_then(|field| prefix_field(field, problems));
    let except = exceptions(rule, prefix, problems);
    let prefix = prefix?;
    Some(Selector::Cidr(CidrSelector {
        prefix,
        except: except?.into(),
        world: World::of(prefix.ip(), context.settings.ipv4, context.settings.ipv6),
        bare: false,
    }))
}

/// Reads the exceptions of an element, which lie inside its prefix if it has one; `None` if one is invalid.
fn exceptions(
    rule: &Object<'_>,
    prefix: Option<IpNetwork>,
    problems: &mut Problems,
) -> Option<Vec<IpNetwork>> {
    let except = rule.field("except").and_then(|field| field.list(problems)).unwrap_or_default();
    let except: Vec<Option<IpNetwork>> = except
        .iter()
        .map(|field| {
            let inner = prefix_field(field, problems)?;
            if let Some(outer) = prefix
                && !contains(&outer, &inner)
            {
                let reason = format!("{inner} is not inside {outer}");
                problems.add(&field.path, reason, "exceptions lie inside the cidr of the same element");
                return None;
            }
            Some(inner)
        })
        .collect();
    except.into_iter().collect()
}

/// Reads a field that must be a prefix; reports any other value.
fn prefix_field(field: &Field<'_>, problems: &mut Problems) -> Option<IpNetwork> {
    let text = field.text(problems)?;
    let prefix = parse_prefix(text);
    if prefix.is_none() {
        let reason = format!("{}: not a prefix", quoted(field.value));
        problems.add(&field.path, reason, "write it as 192.0.2.0/24 or 2001:db8::/32");
    }
    prefix
}

#[cfg(test)]
mod tests {
    use super::parse_prefix;

    #[test]
    fn prefixes_have_one_spelling_of_their_length() {
        for good in ["10.0.0.0/8", "10.1.2.3/24", "0.0.0.0/0", "::/0", "fd00:1::5/128", "::ffff:10.0.0.0/104"]
        {
            assert!(parse_prefix(good).is_some(), "{good}");
        }
        let bad =
            ["10.0.0.0/08", "10.0.0.0/255.0.0.0", "10.0.0.0/33", "010.0.0.0/8", "::/129", "10.0.0.0/-1"];
        for bad in bad.into_iter().chain(["10.0.0.0/", "fe80::1%eth0/64", "10.0.0.0/+8", "10.0.0/8", "", "/"])
        {
            assert!(parse_prefix(bad).is_none(), "{bad}");
        }
    }
}
