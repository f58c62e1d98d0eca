//! One comparison of the kernel's rules with the desired ones, and the repair of what differs.

use std::collections::BTreeMap;

use crate::backend::{Tools, may_have_chains};
use crate::changes::{Placement, Spellings, changes};
use crate::error::Error;
use crate::ipset::NODE_SETS;
use crate::ipset::kernel::Sets;
use crate::program::Runner;
use crate::rules::{Chain, Family, Inputs, chains, marks_host};
use crate::saved::Saved;

/// The state of the kernel as previous passes have found it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The programs in use.
    pub(crate) tools: Option<Tools>,
    /// The kernel lacks the match of sockets.
    pub(crate) no_socket_match: bool,
    /// The last pass has left out the rules that lead to proxies, which the kernel has refused.
    pub(crate) no_proxy_rules: bool,
    /// Chains in the other backend were removed, or there are none.
    other_is_clean: bool,
    /// Sets that are not desired were destroyed.
    sets_are_clean: bool,
    spellings: [Spellings; 2],
}

/// The desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    /// The inputs of each enabled family; both lists are empty if no rules are to be installed.
    pub(crate) families: Vec<(Family, Inputs)>,
    /// Whether the rules of hooks are before all others.
    pub(crate) prepend: bool,
    /// Whether to go on without the match of sockets.
    pub(crate) socket_fallback: bool,
}

/// The outcome for one family.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) family: Family,
    /// Names of the chains that were written.
    pub(crate) result: Result<String, Error>,
    /// Whether the rule that marks the host's packets is in force.
    pub(crate) marks_host: bool,
}

/// The outcome of a pass.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) families: Vec<Outcome>,
    /// Why leftovers of another configuration could not be removed.
    pub(crate) leftovers: Result<(), Error>,
}

impl Report {
    /// Whether all is as desired.
    pub(crate) fn is_ok(&self) -> bool {
        self.leftovers.is_ok() && self.families.iter().all(|outcome| outcome.result.is_ok())
    }

    /// Whether anything was written.
    pub(crate) fn has_written(&self) -> bool {
        self.families.iter().any(|outcome| outcome.result.as_ref().map_or(true, |chains| !chains.is_empty()))
    }
}

/// Compares and repairs everything; with `enforced` also the places of the rules that lead to the agent's chains.
/// Blocks.
///
/// # Errors
/// If the programs of iptables cannot be determined.
pub(crate) fn run(
    known: &mut Known,
    desired: &Desired,
    runner: &Runner,
    enforced: bool,
) -> Result<Report, Error> {
    known.no_proxy_rules = false;
    // A node without rules of any agent needs no program to stay without.
    if desired.families.is_empty() && !may_have_chains() {
        known.sets_are_clean = known.sets_are_clean || destroy_sets(&[]);
        return Ok(Report { families: Vec::new(), leftovers: Ok(()) });
    }
    let families: Vec<Family> = desired.families.iter().map(|(family, _)| *family).collect();
    let tools = match &known.tools {
        Some(tools) => tools.clone(),
        None => Tools::choose(runner, if families.is_empty() { &Family::ALL } else { &families })?,
    };
    known.tools = Some(tools.clone());
    let placement = Placement { first: desired.prepend, enforced };
    let (sets, set_error) = create_sets(desired);
    let mut report = Report { families: Vec::new(), leftovers: Ok(()) };
    for (family, inputs) in &desired.families {
        let mut one = OneFamily { family: *family, tool: tools.name(*family), runner, placement };
        let mut inputs = inputs.clone();
        if let Some(masquerade) = &mut inputs.masquerade {
            masquerade.node_set = masquerade.node_set.filter(|set| sets.contains(set));
        }
        let result = one.apply(known, &inputs, desired.socket_fallback);
        let (result, chains) = match result {
            Ok((written, chains)) => (Ok(written), chains),
            Err(error) => (Err(error), Vec::new()),
        };
        let marks_host = chains.iter().any(marks_host);
        report.families.push(Outcome { family: *family, result, marks_host });
    }
    // After the desired rules are in force, so that there is no moment without any.
    report.leftovers = remove_leftovers(known, &tools, &families, runner).and(set_error.map_or(Ok(()), Err));
    if report.is_ok() && !known.sets_are_clean {
        known.sets_are_clean = destroy_sets(&sets);
    }
    Ok(report)
}

/// Creates the sets that rules refer to. Returns those that exist, and why one does not.
fn create_sets(desired: &Desired) -> (Vec<&'static str>, Option<Error>) {
    let wanted = desired.families.iter().filter_map(|(family, inputs)| {
        let set = inputs.masquerade.as_ref()?.node_set?;
        Some((*family, set))
    });
    let (mut existing, mut failed) = (Vec::new(), None);
    for (family, set) in wanted {
        match Sets::open().and_then(|mut sets| sets.create(set, family)) {
            Ok(()) => existing.push(set),
            Err(source) => failed = Some(Error::Set { set, source }),
        }
    }
    (existing, failed)
}

/// Destroys sets of other options. Returns false if rules may still use one: the kernel frees rules that were removed
/// a moment later, and those of other programs stay.
fn destroy_sets(wanted: &[&str]) -> bool {
    let Ok(mut sets) = Sets::open() else { return true };
    let others = NODE_SETS.into_iter().filter(|set| !wanted.contains(set));
    others.fold(true, |clean, set| match sets.destroy(set) {
        Ok(is_destroyed) => clean && is_destroyed,
        Err(error) => {
            tracing::debug!(%error, set, "The set is not destroyed");
            clean
        }
    })
}

/// Removes the agent's chains of families that are off, and those in the other backend.
fn remove_leftovers(
    known: &mut Known,
    tools: &Tools,
    families: &[Family],
    runner: &Runner,
) -> Result<(), Error> {
    if known.other_is_clean {
        return Ok(());
    }
    for family in Family::ALL.into_iter().filter(|family| !families.contains(family)) {
        match remove(&tools.name(family), runner) {
            // A system or kernel without IPv6 has no rules of it.
            Err(error) if !families.is_empty() => {
                tracing::debug!(%error, family = family.as_str(), "Rules of a disabled family are not removed");
            }
            removed => removed?,
        }
    }
    if let Some(other) = tools.leftover(runner, &Family::ALL) {
        for family in Family::ALL {
            remove(&other.name(family), runner)?;
        }
    }
    known.other_is_clean = true;
    Ok(())
}

/// Removes all chains of the agent.
fn remove(tool: &str, runner: &Runner) -> Result<(), Error> {
    let saved = Saved::parse(&runner.save(tool)?);
    let placement = Placement { first: true, enforced: false };
    let removed = changes(&[], &saved, placement, &Spellings::default());
    if removed.is_empty() {
        return Ok(());
    }
    runner.restore(tool, &removed.script())?;
    tracing::info!(tool, chains = removed.chains(), "Removed rules of iptables that are not desired");
    Ok(())
}

struct OneFamily<'a> {
    family: Family,
    tool: String,
    runner: &'a Runner,
    placement: Placement,
}

impl OneFamily<'_> {
    /// Makes the kernel's rules the desired ones. Returns the names of the written chains and the chains in force.
    fn apply(
        &mut self,
        known: &mut Known,
        inputs: &Inputs,
        fallback: bool,
    ) -> Result<(String, Vec<Chain>), Error> {
        let saved = Saved::parse(&self.runner.save(&self.tool)?);
        let mut inputs = inputs.clone();
        inputs.untracked.restore(&saved);
        let inputs = &inputs;
        let socket_match = inputs.socket_match && !known.no_socket_match;
        let first = self.write(known, &Inputs { socket_match, ..inputs.clone() }, &saved);
        match first {
            // The programs do not name the rule that the kernel refuses, and only this one needs an optional module.
            Err(error) if error.is_refusal() && socket_match && fallback => {
                match self.write(known, &Inputs { socket_match: false, ..inputs.clone() }, &saved) {
                    Ok(written) => {
                        known.no_socket_match = true;
                        tracing::warn!(%error, "The kernel has no match of sockets (xt_socket), the rule for proxies is left out");
                        Ok(written)
                    }
                    Err(_) => self.without_proxies(known, inputs, &saved, (error, true)),
                }
            }
            Err(error) if error.is_refusal() => self.without_proxies(known, inputs, &saved, (error, false)),
            result => result,
        }
    }

    /// Writes the rules without those that lead to proxies, which the kernel may have refused; with `fallback` also without
    /// the match of sockets. Returns the error in any case: redirected traffic is denied, and the next pass tries again.
    fn without_proxies(
        &mut self,
        known: &mut Known,
        inputs: &Inputs,
        saved: &Saved,
        (error, fallback): (Error, bool),
    ) -> Result<(String, Vec<Chain>), Error> {
        if inputs.proxies.is_empty() {
            return Err(error);
        }
        let has_match = inputs.socket_match && !known.no_socket_match;
        for socket_match in [has_match, false].into_iter().take(1 + usize::from(has_match && fallback)) {
            let inputs = Inputs { socket_match, proxies: BTreeMap::new(), ..inputs.clone() };
            // The first error has the reason; another one would only repeat it.
            if self.write(known, &inputs, saved).is_ok() {
                known.no_proxy_rules = true;
                known.no_socket_match |= has_match && !socket_match;
                break;
            }
        }
        Err(error)
    }

    /// Writes what differs from the saved state, and reads it back once.
    fn write(
        &mut self,
        known: &mut Known,
        inputs: &Inputs,
        saved: &Saved,
    ) -> Result<(String, Vec<Chain>), Error> {
        let desired = chains(self.family, inputs);
        let spellings = &mut known.spellings[usize::from(self.family == Family::V6)];
        let needed = changes(&desired, saved, self.placement, spellings);
        if needed.is_empty() {
            return Ok((String::new(), desired));
        }
        self.runner.restore(&self.tool, &needed.script())?;
        let saved = Saved::parse(&self.runner.save(&self.tool)?);
        spellings.record(&desired, &saved);
        let placement = Placement { enforced: false, ..self.placement };
        let left = changes(&desired, &saved, placement, spellings);
        match left.is_empty() {
            true => Ok((needed.chains(), desired)),
            false => Err(Error::NotKept { chains: left.chains() }),
        }
    }
}
