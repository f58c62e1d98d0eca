//! The state of the kernel as `iptables-save` prints it.

use std::collections::BTreeMap;

/// Chains of all tables with their rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// By table and chain: the rules without `-A` and the chain.
    chains: BTreeMap<(String, String), Vec<String>>,
}

impl Saved {
    /// Parses the output of `iptables-save`. Comments, counters and policies are ignored.
    #[must_use]
    pub fn parse(text: &str) -> Saved {
        let mut saved = Saved::default();
        let mut table = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                saved.chain(table, name);
            } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|line| line.split_once(' '))
            {
                saved.chain(table, chain).push(rule.to_owned());
            }
        }
        saved
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut Vec<String> {
        self.chains.entry((table.to_owned(), chain.to_owned())).or_default()
    }

    /// Returns the rules of a chain; none if there is no such chain.
    #[must_use]
    pub fn rules(&self, table: &str, chain: &str) -> Option<&[String]> {
        self.chains.get(&(table.to_owned(), chain.to_owned())).map(Vec::as_slice)
    }

    /// Returns table and name of all chains.
    pub fn chains(&self) -> impl Iterator<Item = (&str, &str)> {
        self.chains.keys().map(|(table, chain)| (table.as_str(), chain.as_str()))
    }

    /// Returns the chains of a table, each with its rules.
    pub fn of_table(&self, table: &str) -> impl Iterator<Item = (&str, &[String])> {
        let of_table = self.chains.iter().filter(move |((name, _), _)| name == table);
        of_table.map(|((_, chain), rules)| (chain.as_str(), rules.as_slice()))
    }
}

/// Returns the chain that a rule jumps or goes to; a target such as `ACCEPT` if it is none.
#[must_use]
pub fn target(rule: &str) -> Option<&str> {
    // A comment comes before the target, so the last one counts.
    let (_, target) = rule.rsplit_once(" -j ").or_else(|| rule.rsplit_once(" -g ")).or_else(|| {
        let whole = rule.strip_prefix("-j ").or_else(|| rule.strip_prefix("-g "))?;
        Some(("", whole))
    })?;
    target.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_rules_are_parsed_and_the_rest_is_ignored() {
        let text = "# Warning: iptables-legacy tables present\n*filter\n:INPUT ACCEPT [1:2]\n:MINE - [0:0]\n\
                    [7:8] -A INPUT -j DROP\n-A INPUT -j MINE\n-A MINE -m comment --comment \"a -j b\" -j ACCEPT\n\
                    COMMIT\n# Table `nat' is incompatible, use 'nft' tool.\n*raw\n:OUTPUT ACCEPT [0:0]\nCOMM";
        let saved = Saved::parse(text);
        assert_eq!(
            saved.chains().collect::<Vec<_>>(),
            [("filter", "INPUT"), ("filter", "MINE"), ("raw", "OUTPUT")]
        );
        assert_eq!(saved.rules("filter", "INPUT").unwrap(), ["-j MINE"]);
        assert_eq!(saved.rules("raw", "OUTPUT").unwrap(), [""; 0]);
        assert_eq!(saved.rules("raw", "INPUT"), None);
        assert_eq!(target(&saved.rules("filter", "MINE").unwrap()[0]), Some("ACCEPT"));
        assert_eq!(target("-j MARK --set-xmark 0x1/0x2"), Some("MARK"));
        assert_eq!(target("-p tcp -g CILIUM_INPUT"), Some("CILIUM_INPUT"));
        assert_eq!(target("-p tcp"), None);
    }
}
