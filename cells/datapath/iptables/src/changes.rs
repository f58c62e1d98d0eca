//! The difference between the desired chains and those in the kernel, as input of `iptables-restore --noflush`.
//!
//! Only the agent's chains and the rules that lead to them are named in it: everything else stays. A table is changed
//! in one transaction of the kernel, so that no packet meets a chain that is half there.

use std::collections::{BTreeMap, BTreeSet};

use crate::rules::{Chain, feeder, is_feeder, is_own};
use crate::saved::{Saved, target};

/// How rules that lead to the agent's chains are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Before all other rules of their chain, or behind them.
    pub first: bool,
    /// Whether a rule at another place is moved. Otherwise only missing ones are added: two programs that both want to
    /// be first must not move their rules for ever.
    pub enforced: bool,
}

/// The rules of a chain as they are requested, and as the kernel returns them.
type Spelling = (Vec<String>, Vec<String>);

/// The rules that the kernel has printed for desired ones: another version of a program may spell them differently.
#[derive(Clone, Debug, Default)]
pub struct Spellings(BTreeMap<(&'static str, &'static str), Spelling>);

impl Spellings {
    /// Records how the kernel prints the chains that have just been written. Chains with fewer or more rules than
    /// written were changed by another process meanwhile.
    pub fn record(&mut self, written: &[Chain], saved: &Saved) {
        for chain in written {
            let key = (chain.table, chain.name);
            match saved.rules(chain.table, chain.name) {
                Some(found) if found != chain.rules && found.len() == chain.rules.len() => {
                    self.0.insert(key, (chain.rules.clone(), found.to_vec()));
                }
                _ => drop(self.0.remove(&key)),
            }
        }
    }

    fn is_equal(&self, chain: &Chain, found: &[String]) -> bool {
        let is_spelled = |(rules, spelled): &Spelling| *rules == chain.rules && spelled == found;
        found == chain.rules || self.0.get(&(chain.table, chain.name)).is_some_and(is_spelled)
    }
}

/// Changes of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Lines by table.
    tables: BTreeMap<String, Vec<String>>,
    /// Names of the chains that are written, made or removed, for the log.
    chains: BTreeSet<String>,
}

impl Changes {
    /// Whether the kernel is as desired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns the names of the chains that differ.
    #[must_use]
    pub fn chains(&self) -> String {
        let names: Vec<&str> = self.chains.iter().map(String::as_str).collect();
        names.join(" ")
    }

    /// Returns the input of `iptables-restore --noflush`.
    #[must_use]
    pub fn script(&self) -> String {
        let table =
            |(name, lines): (&String, &Vec<String>)| format!("*{name}\n{}\nCOMMIT\n", lines.join("\n"));
        self.tables.iter().map(table).collect()
    }
}

/// Returns the changes that make the kernel's chains the desired ones. Chains of the agent that are not desired are
/// removed, unless a rule of another program leads to them.
#[must_use]
pub fn changes(desired: &[Chain], saved: &Saved, placement: Placement, spellings: &Spellings) -> Changes {
    let mut changes = Changes::default();
    let tables: BTreeSet<&str> =
        desired.iter().map(|chain| chain.table).chain(saved.chains().map(|(table, _)| table)).collect();
    for table in tables {
        let mut lines = Vec::new();
        let wanted: Vec<&Chain> = desired.iter().filter(|chain| chain.table == table).collect();
        let mut named = |name: &str| {
            changes.chains.insert(name.to_owned());
        };
        for chain in &wanted {
            let found = saved.rules(table, chain.name);
            if found.is_none_or(|found| !spellings.is_equal(chain, found)) {
                // Empties the chain if there is one.
                lines.push(format!(":{} - [0:0]", chain.name));
                lines.extend(chain.rules.iter().map(|rule| format!("-A {} {rule}", chain.name)));
                named(chain.name);
            }
        }
        for (chain, rules) in saved.of_table(table) {
            if !is_own(table, chain) {
                let fed = wanted.iter().find(|wanted| wanted.hook == chain && wanted.has_feeder);
                feed(chain, fed.copied(), rules, placement, &mut lines, &mut named);
            }
        }
        // Tables and their chains may be unknown to the kernel before their first rule.
        for chain in
            wanted.iter().filter(|chain| chain.has_feeder && saved.rules(table, chain.hook).is_none())
        {
            feed(chain.hook, Some(chain), &[], placement, &mut lines, &mut named);
        }
        remove_others(table, &wanted, saved, &mut lines, &mut named);
        if !lines.is_empty() {
            changes.tables.insert(table.to_owned(), lines);
        }
    }
    changes
}

/// Makes the rule of a hook that leads to the chain, and removes other ones of agents.
fn feed(
    hook: &str,
    chain: Option<&Chain>,
    rules: &[String],
    placement: Placement,
    lines: &mut Vec<String>,
    named: &mut impl FnMut(&str),
) {
    let found: Vec<(usize, &String)> = rules.iter().enumerate().filter(|(_, rule)| is_feeder(rule)).collect();
    let remove =
        |lines: &mut Vec<String>| lines.extend(found.iter().map(|(_, rule)| format!("-D {hook} {rule}")));
    let Some(chain) = chain else {
        if !found.is_empty() {
            remove(lines);
            named(hook);
        }
        return;
    };
    let rule = feeder(chain.name);
    let place = if placement.first { 0 } else { rules.len().saturating_sub(1) };
    let is_right = |(at, found): &(usize, &String)| **found == rule && (*at == place || !placement.enforced);
    if found.len() == 1 && found.iter().all(is_right) {
        return;
    }
    remove(lines);
    lines.push(if placement.first { format!("-I {hook} 1 {rule}") } else { format!("-A {hook} {rule}") });
    named(hook);
}

/// Removes chains of the agent that are not desired: those of other options, and those that Cilium was replacing.
fn remove_others(
    table: &str,
    wanted: &[&Chain],
    saved: &Saved,
    lines: &mut Vec<String>,
    named: &mut impl FnMut(&str),
) {
    let is_stale = |name: &str| is_own(table, name) && !wanted.iter().any(|chain| chain.name == name);
    let leads = |rules: &[String], name: &str| {
        rules.iter().any(|rule| target(rule) == Some(name) && !is_feeder(rule))
    };
    let is_used =
        |name: &str| saved.of_table(table).any(|(chain, rules)| !is_stale(chain) && leads(rules, name));
    let stale: Vec<&str> =
        saved.of_table(table).map(|(chain, _)| chain).filter(|name| is_stale(name)).collect();
    // A chain is deleted once no rule refers to it, so flush all before deleting the first.
    let used: BTreeSet<&str> = stale.iter().copied().filter(|name| is_used(name)).collect();
    for name in &stale {
        if !used.contains(name) || saved.rules(table, name).is_some_and(|rules| !rules.is_empty()) {
            lines.push(format!("-F {name}"));
            named(name);
        }
    }
    lines.extend(stale.iter().filter(|name| !used.contains(*name)).map(|name| format!("-X {name}")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::inputs;
    use crate::rules::{Family, chains};

    const RECORDED: &str = include_str!("../tests/data/iptables-save.txt");
    const FIRST: Placement = Placement { first: true, enforced: true };

    fn desired() -> Vec<Chain> {
        chains(Family::V4, &inputs())
    }

    fn script(desired: &[Chain], saved: &str, placement: Placement) -> String {
        changes(desired, &Saved::parse(saved), placement, &Spellings::default()).script()
    }

    /// The lines of a rule set with one line replaced.
    fn edited(from: &str, to: &str) -> String {
        assert!(RECORDED.contains(from), "{from}");
        RECORDED.replacen(from, to, 1)
    }

    #[test]
    fn an_equal_state_needs_no_change() {
        assert_eq!(script(&desired(), RECORDED, FIRST), "");
        assert_eq!(script(&[], "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\nCOMMIT\n", FIRST), "");
    }

    #[test]
    fn an_empty_kernel_gets_all() {
        let script = script(&desired(), "", FIRST);
        assert_eq!(script.matches("\n:CILIUM_").count(), 10);
        assert_eq!(script.matches("\n-I ").count(), 10);
        assert_eq!(script.matches("\n-A CILIUM_").count(), 20);
        assert_eq!(script.matches("COMMIT\n").count(), 4);
        assert!(!script.contains("-D ") && !script.contains("-F "));
    }

    #[test]
    fn a_changed_chain_is_written_alone() {
        let rule = "-A CILIUM_FORWARD -i lxc+ -m comment --comment \"cilium: cluster->any on lxc+ forward accept\" -j ACCEPT";
        for other in ["", "-A CILIUM_FORWARD -i lxc+ -j DROP"] {
            let script = script(&desired(), &edited(rule, other), FIRST);
            assert!(
                script.starts_with("*filter\n:CILIUM_FORWARD - [0:0]\n-A CILIUM_FORWARD -o cilium_host "),
                "{script}"
            );
            assert_eq!(script.lines().count(), 2 + 4 + 1, "{script}");
        }
    }

    #[test]
    fn feeders_are_placed_once_and_foreign_rules_stay() {
        let feeder = "-A INPUT -m comment --comment \"cilium-feeder: CILIUM_INPUT\" -j CILIUM_INPUT";
        let bare = feeder.trim_start_matches("-A INPUT ");
        let insert = format!("*filter\n-I INPUT 1 {bare}\nCOMMIT\n");
        assert_eq!(script(&desired(), &edited(feeder, "-A INPUT -j CILIUM_INPUT"), FIRST), insert, "by hand");
        let moved = format!("*filter\n-D INPUT {bare}\n-I INPUT 1 {bare}\nCOMMIT\n");
        let second = edited(feeder, &format!("-A INPUT -j KUBE-FIREWALL\n{feeder}"));
        assert_eq!(script(&desired(), &second, FIRST), moved);
        assert_eq!(script(&desired(), &second, Placement { enforced: false, ..FIRST }), "");
        let last = Placement { first: false, enforced: true };
        let only_input: Vec<Chain> =
            desired().into_iter().filter(|chain| chain.name == "CILIUM_INPUT").collect();
        let filter = "*filter\n:INPUT ACCEPT [0:0]\n:CILIUM_INPUT - [0:0]\n";
        let rules = format!("-A CILIUM_INPUT {}\n", only_input[0].rules[0]);
        let at_first = format!("{filter}{feeder}\n-A INPUT -j KUBE-FIREWALL\n{rules}COMMIT\n");
        assert_eq!(
            script(&only_input, &at_first, last),
            format!("*filter\n-D INPUT {bare}\n-A INPUT {bare}\nCOMMIT\n")
        );
        let twice = edited(feeder, &format!("{feeder}\n-A INPUT -j KUBE-FIREWALL\n{feeder}"));
        assert_eq!(
            script(&desired(), &twice, Placement { enforced: false, ..FIRST }),
            format!("*filter\n-D INPUT {bare}\n-D INPUT {bare}\n-I INPUT 1 {bare}\nCOMMIT\n")
        );
    }

    #[test]
    fn feeders_that_options_forbid_are_removed() {
        let none = crate::rules::Inputs { no_feeder: vec!["FORWARD".into()], ..inputs() };
        assert_eq!(
            script(&chains(Family::V4, &none), RECORDED, FIRST),
            "*filter\n-D FORWARD -m comment --comment \"cilium-feeder: CILIUM_FORWARD\" -j CILIUM_FORWARD\nCOMMIT\n"
        );
    }

    #[test]
    fn all_is_removed_without_desired_chains_and_nothing_of_others() {
        let script = script(&[], RECORDED, FIRST);
        assert_eq!(script.matches("\n-D ").count(), 10, "{script}");
        assert_eq!(script.matches("\n-F CILIUM_").count(), 10);
        assert_eq!(script.matches("\n-X CILIUM_").count(), 10);
        assert_eq!(script.lines().count(), 4 * 2 + 30);
    }

    #[test]
    fn chains_that_cilium_was_replacing_are_removed_unless_others_use_them() {
        let begin =
            "*filter\n:INPUT ACCEPT [0:0]\n:MINE - [0:0]\n:OLD_CILIUM_INPUT - [0:0]\n:CILIUM_OTHER - [0:0]\n";
        let feeder = "-m comment --comment \"cilium-feeder: CILIUM_INPUT\" -j OLD_CILIUM_INPUT";
        let old = format!("{begin}-A INPUT {feeder}\n-A OLD_CILIUM_INPUT -j ACCEPT\nCOMMIT\n");
        assert_eq!(
            script(&[], &old, FIRST),
            format!("*filter\n-D INPUT {feeder}\n-F OLD_CILIUM_INPUT\n-X OLD_CILIUM_INPUT\nCOMMIT\n")
        );
        let used = old.replace("COMMIT", "-A MINE -j OLD_CILIUM_INPUT\nCOMMIT");
        assert_eq!(
            script(&[], &used, FIRST),
            format!("*filter\n-D INPUT {feeder}\n-F OLD_CILIUM_INPUT\nCOMMIT\n")
        );
    }

    #[test]
    fn rules_that_a_program_spells_differently_are_not_written_again() {
        let spelled = Saved::parse(&RECORDED.replace("0x200/0xf00", "0x0200/0x0f00"));
        let mut spellings = Spellings::default();
        let differing = changes(&desired(), &spelled, FIRST, &spellings);
        assert_eq!(differing.chains(), "CILIUM_INPUT CILIUM_PRE_raw");
        spellings.record(&desired(), &spelled);
        assert!(changes(&desired(), &spelled, FIRST, &spellings).is_empty());
        // A change of it, or of the desired rules, is noticed nevertheless.
        assert!(!changes(&desired(), &Saved::parse(""), FIRST, &spellings).is_empty());
        let other = Saved::parse(&RECORDED.replace("0x200/0xf00", "0x300/0xf00"));
        assert!(!changes(&desired(), &other, FIRST, &spellings).is_empty());
        spellings.record(&desired(), &Saved::parse(RECORDED));
        assert!(!changes(&desired(), &spelled, FIRST, &spellings).is_empty());
    }
}
