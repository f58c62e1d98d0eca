//! The options of local redirect policies, in Cilium's spelling. Changes take effect at the next start.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// The scope of local redirect policies.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Services", check = |config: &Self| config.ranges().map(drop).map_err(|error| error.to_string()))]
pub struct RedirectConfig {
    /// Follow CiliumLocalRedirectPolicies: redirect traffic to a service or an address to pods of this node
    #[flag(default = false)]
    pub enable_local_redirect_policy: bool,
    /// Prefixes whose addresses local redirect policies may take (addressMatcher); without any they may take all
    #[flag(default = "")]
    pub lrp_address_matcher_cidrs: Vec<String>,
}

/// An invalid prefix, with which the agent does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option lrp-address-matcher-cidrs: '{0}' is no prefix; give for example 169.254.0.0/16,fd00::/8")]
pub struct WrongRange(pub String);

impl RedirectConfig {
    /// Returns the prefixes of `lrp-address-matcher-cidrs`.
    pub fn ranges(&self) -> Result<Ranges, WrongRange> {
        let texts = self.lrp_address_matcher_cidrs.iter().map(|text| text.trim());
        let read = |text: &str| match text.contains('/') {
            true => text.parse().map_err(|_| WrongRange(text.to_owned())),
            false => Err(WrongRange(text.to_owned())),
        };
        Ok(Ranges(texts.filter(|text| !text.is_empty()).map(read).collect::<Result<_, _>>()?))
    }
}

/// The addresses that policies may take; all without any prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<IpNetwork>);

impl Ranges {
    pub(crate) fn allow(&self, ip: IpAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|range| range.contains(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_limit_addresses() {
        let of = |texts: &[&str]| RedirectConfig {
            lrp_address_matcher_cidrs: texts.iter().map(|text| (*text).to_owned()).collect(),
            ..RedirectConfig::default()
        };
        let all = of(&[]).ranges().unwrap();
        assert!(all.allow([1, 2, 3, 4].into()));
        let some = of(&["169.254.0.0/16", " fd00::/8"]).ranges().unwrap();
        assert!(some.allow([169, 254, 1, 1].into()) && some.allow("fd00::1".parse().unwrap()));
        assert!(!some.allow([10, 0, 0, 1].into()) && !some.allow("fe80::1".parse().unwrap()));
        for wrong in ["169.254.0.0", "169.254.0.0/33", "x/8"] {
            let error = of(&[wrong]).ranges().unwrap_err();
            assert_eq!(error, WrongRange(wrong.to_owned()));
            assert!(error.to_string().contains("lrp-address-matcher-cidrs"), "{error}");
        }
    }
}
