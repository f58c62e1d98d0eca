//! Selectors of identities: by labels, by prefix or by entity.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;
use k8s_types::selector::Test;
use labels::{ANY, CIDR, LabelArray, RESERVED, UNSPECIFIED};

use crate::groups::CIDR_GROUP;
use crate::model::World;
use crate::selector_text::Plain;

/// Source of the labels of addresses that DNS names resolve to.
const FQDN: &str = "fqdn";

/// A selector with the implied namespace and cluster added.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// By labels; all requirements hold. Without any it selects every identity.
    Labels(Vec<Requirement>),
    /// By prefix.
    Cidr(CidrSelector),
    /// By DNS name: identities of addresses that the name resolves to.
    Fqdn(FqdnSelector),
    /// The entity `none`: no identity.
    None,
}

/// Identities with the label of a name or pattern, which the DNS proxy gives to addresses of answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FqdnSelector {
    /// The name, as written; empty if there is a pattern.
    pub match_name: Box<str>,
    /// The pattern, as written.
    pub match_pattern: Box<str>,
}

/// Identities whose prefix lies inside a prefix, but not inside one of the exceptions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CidrSelector {
    /// The prefix, host bits as written. A prefix of length 0 selects the identities with the label
    /// [`world`](Self::world).
    pub prefix: IpNetwork,
    /// The prefixes that are excluded.
    pub except: Box<[IpNetwork]>,
    /// The world of addresses of this family.
    pub world: World,
    /// Whether it was written as an address, without a length.
    pub bare: bool,
}

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// The source; `any` and `unspec` match every source.
    pub source: String,
    /// Key, without the source.
    pub key: String,
    /// The test.
    pub test: Test,
}

impl Selector {
    /// Returns the selector of the reserved label with this name.
    pub fn reserved(name: &str) -> Selector {
        Selector::Labels(vec![Requirement::equals(RESERVED, name, "")])
    }

    /// Whether it selects every identity.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Selector::Labels(requirements) if requirements.is_empty())
    }

    /// Returns the prefixes that it names, exceptions included, as networks: each needs an identity. Prefixes of length 0
    /// are the world of the family, with a reserved identity.
    pub fn prefixes(&self) -> Vec<IpNetwork> {
        let own = if let Selector::Cidr(cidr) = self { masked(cidr.prefix) } else { None };
        own.into_iter().chain(self.exceptions()).collect()
    }

    /// Returns those of [`prefixes`](Self::prefixes) that are exceptions.
    pub(crate) fn exceptions(&self) -> Vec<IpNetwork> {
        match self {
            Selector::Cidr(cidr) => cidr.except.iter().copied().filter_map(masked).collect(),
            Selector::Labels(requirements) if self.is_of_cidr_groups() => {
                let except = requirements.iter().filter(|requirement| requirement.source == CIDR);
                except.filter_map(|requirement| masked(requirement.key.parse().ok()?)).collect()
            }
            Selector::Labels(_) | Selector::Fqdn(_) | Selector::None => Vec::new(),
        }
    }

    /// Whether it selects by CIDR groups: all of their prefixes need identities then.
    pub fn is_of_cidr_groups(&self) -> bool {
        matches!(self, Selector::Labels(requirements) if requirements.iter().any(|r| r.source == CIDR_GROUP))
    }

    /// Whether an identity with these labels is selected. Linear in the requirements.
    pub fn matches(&self, labels: &LabelArray) -> bool {
        match self {
            Selector::Labels(requirements) => requirements.iter().all(|r| r.holds(labels)),
            Selector::Cidr(cidr) => cidr.matches(labels),
            Selector::Fqdn(fqdn) => labels.has(FQDN, fqdn.label_key()),
            Selector::None => false,
        }
    }

    /// Returns the selector's text, as Cilium's `GET /policy/selectors` prints it.
    pub fn key(&self) -> String {
        match self {
            Selector::Labels(requirements) => label_selector_text(requirements),
            Selector::Cidr(cidr) => cidr.key(),
            Selector::Fqdn(fqdn) => {
                format!("MatchName: {}, MatchPattern: {}", fqdn.match_name, fqdn.match_pattern)
            }
            Selector::None => Selector::reserved("none").key(),
        }
    }
}

impl FqdnSelector {
    /// Returns the key of the label that selected identities carry: the selector's text as written.
    pub fn label_key(&self) -> &str {
        if self.match_name.is_empty() { &self.match_pattern } else { &self.match_name }
    }
}

impl CidrSelector {
    pub(crate) fn of_plain(Plain { prefix, bare }: Plain, world: World) -> CidrSelector {
        CidrSelector { prefix, except: [].into(), world, bare }
    }

    /// Returns the prefix, if it is a plain one.
    pub(crate) fn plain(&self) -> Option<(Plain, World)> {
        let plain = Plain { prefix: self.prefix, bare: self.bare };
        (self.except.is_empty() && self.prefix.prefix() > 0).then_some((plain, self.world))
    }

    fn matches(&self, labels: &LabelArray) -> bool {
        self.covers(&self.prefix, labels) && !self.except.iter().any(|except| self.covers(except, labels))
    }

    fn covers(&self, prefix: &IpNetwork, labels: &LabelArray) -> bool {
        match prefix.prefix() {
            0 => labels.has(RESERVED, self.world.label()),
            _ => has_prefix_inside(labels, prefix),
        }
    }

    fn key(&self) -> String {
        let mut text = Plain { prefix: self.prefix, bare: self.bare }.to_string();
        if !self.except.is_empty() {
            let except: Vec<String> = self.except.iter().map(IpNetwork::to_string).collect();
            let _ = write!(text, "-[{}]", except.join(","));
        }
        text
    }
}

impl Requirement {
    /// Returns the requirement that the label has this value.
    pub fn equals(source: &str, key: &str, value: &str) -> Requirement {
        Requirement { source: source.to_owned(), key: key.to_owned(), test: Test::Equals(value.to_owned()) }
    }

    /// Returns `source:key`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.source, self.key)
    }

    /// Whether labels fulfil the requirement. Sources `any` and `unspec` compare the first label with the key,
    /// regardless of its source.
    pub fn holds(&self, labels: &LabelArray) -> bool {
        if self.source == CIDR
            && let Ok(prefix) = self.key.parse::<IpNetwork>()
        {
            let inside = has_prefix_inside(labels, &prefix);
            return self.test.holds(inside.then_some(""));
        }
        let mut of_key = labels.of_key(&self.key);
        let label = match matches!(self.source.as_str(), ANY | UNSPECIFIED) {
            true => of_key.next(),
            false => of_key.find(|label| label.source == self.source),
        };
        self.test.holds(label.map(|label| label.value))
    }
}

/// Returns a prefix without host bits; `None` for one of length 0.
fn masked(prefix: IpNetwork) -> Option<IpNetwork> {
    IpNetwork::new(prefix.network(), prefix.prefix()).ok().filter(|prefix| prefix.prefix() > 0)
}

/// Whether a label names a prefix that is a subset of `outer`.
fn has_prefix_inside(labels: &LabelArray, outer: &IpNetwork) -> bool {
    labels
        .iter()
        .filter(|label| label.source == CIDR)
        .any(|label| prefix_of_key(label.key).is_some_and(|inner| contains(outer, &inner)))
}

/// Whether `inner` is a subset of `outer`, regardless of the host bits of both.
pub(crate) fn contains(outer: &IpNetwork, inner: &IpNetwork) -> bool {
    inner.prefix() >= outer.prefix() && outer.contains(inner.network())
}

/// Parses the prefix of a label's key, in which colons are written as dashes: `10.0.0.0/8`, `fd00-1--0/32`.
pub(crate) fn prefix_of_key(key: &str) -> Option<IpNetwork> {
    let (address, length) = key.rsplit_once('/')?;
    let address = match address.contains('-') {
        true => IpAddr::V6(address.replace('-', ":").parse::<Ipv6Addr>().ok()?),
        false => address.parse().ok()?,
    };
    IpNetwork::new(address, length.parse().ok()?).ok()
}

fn label_selector_text(requirements: &[Requirement]) -> String {
    let mut text = String::from("&LabelSelector{MatchLabels:map[string]string{");
    for requirement in requirements {
        if let Test::Equals(value) = &requirement.test {
            let _ = write!(text, "{}: {value},", requirement.name());
        }
    }
    text.push_str("},MatchExpressions:[]LabelSelectorRequirement{");
    for requirement in requirements.iter().filter(|r| !matches!(r.test, Test::Equals(_))) {
        let _ = write!(
            text,
            "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
            requirement.name(),
            requirement.test.operator(),
            requirement.test.values().join(" ")
        );
    }
    text.push_str("},}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use labels::Label;

    fn array(texts: &[&str]) -> LabelArray {
        texts.iter().map(|text| Label::parse(text)).collect()
    }

    #[test]
    fn any_source_compares_the_first_label_with_the_key() {
        let selector = Selector::Labels(vec![Requirement::equals("any", "app", "b")]);
        assert!(!selector.matches(&array(&["container:app=a", "k8s:app=b"])));
        assert!(selector.matches(&array(&["container:app=b", "k8s:app=a"])));
        let selector = Selector::Labels(vec![Requirement::equals("k8s", "app", "b")]);
        assert!(selector.matches(&array(&["container:app=a", "k8s:app=b"])));
    }

    #[test]
    fn an_identity_wider_than_an_exception_is_still_selected() {
        let selector = Selector::Cidr(CidrSelector {
            prefix: "10.0.0.0/8".parse().unwrap(),
            except: ["10.1.0.0/16".parse().unwrap()].into(),
            world: World::Ipv4,
            bare: false,
        });
        assert!(selector.matches(&array(&["cidr:10.0.0.0/9"])));
        assert!(selector.matches(&array(&["cidr:10.0.0.0/8"])));
        assert!(!selector.matches(&array(&["cidr:10.1.2.0/24"])));
        assert!(!selector.matches(&array(&["cidr:0.0.0.0/1", "reserved:world-ipv4"])));
        assert_eq!(selector.key(), "cidr:10.0.0.0/8-[10.1.0.0/16]");
    }

    #[test]
    fn labels_of_prefixes_write_dashes_for_colons() {
        for (key, prefix) in [
            ("fd00-1--0/32", "fd00:1::/32"),
            ("0--1/128", "::1/128"),
            ("fd00--10.0.0.1/128", "fd00::a00:1/128"),
            ("192.0.2.0/24", "192.0.2.0/24"),
        ] {
            assert_eq!(prefix_of_key(key), Some(prefix.parse().unwrap()), "{key}");
        }
        assert_eq!(prefix_of_key("fd00-1--0"), None);
        assert_eq!(prefix_of_key("10.0.0.0/33"), None);
    }
}
