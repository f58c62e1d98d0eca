//! `explain`: what a drop reason or a degraded module means, from the pages of `docs/drop-reasons.md` and `docs/health.md`. Needs no
//! agent.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use datapath_abi::drop;

/// The pages: a heading of the second level for each reason, as `## 133: Policy denied`.
const PAGES: &str = include_str!("../../../docs/drop-reasons.md");

/// The pages of modules: a heading of the second level for each, its identifier in the health of the agent.
const MODULES: &str = include_str!("../../../docs/health.md");

#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    /// A number or name of a drop reason, or the identifier of a row of health; without one all reasons and modules are listed
    reason: Vec<String>,
}

/// A reason with its page.
struct Page {
    code: u8,
    text: &'static str,
}

/// Prints the page of a reason, or the list of all reasons that have one.
pub(crate) fn run(options: &ExplainOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let wanted = options.reason.join(" ");
    if wanted.is_empty() {
        for page in pages() {
            writeln!(out, "{}  {}", page.code, drop::label(page.code).unwrap_or_default())?;
        }
        for (module, _) in modules() {
            writeln!(out, "{module}")?;
        }
        return Ok(());
    }
    if let Some(text) = module(&wanted) {
        return Ok(writeln!(out, "{}", text.trim_end())?);
    }
    let found: Vec<Page> = pages().filter(|page| page.matches(&wanted)).collect();
    match found.as_slice() {
        [page] => writeln!(out, "{}", page.text.trim_end())?,
        [] => match named(&wanted) {
            Some((code, name)) => bail!("the programs of this agent do not drop for {code} ({name})"),
            None => bail!("there is no drop reason or module {wanted:?}: `apiary explain` lists them"),
        },
        several => {
            let names: Vec<String> = several.iter().map(|page| page.code.to_string()).collect();
            bail!("{wanted:?} is several drop reasons: {}", names.join(", "));
        }
    }
    Ok(())
}

/// Returns the page of the module that a row of health belongs to, by the row's identifier or the module's own name.
fn module(wanted: &str) -> Option<&'static str> {
    let is_below = |module: &str| wanted.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'));
    let by_id = modules().filter(|(module, _)| *module == wanted || is_below(module));
    let mut by_name = modules().filter(|(module, _)| module.rsplit('.').next() == Some(wanted));
    let found = by_id.max_by_key(|(module, _)| module.len()).or_else(|| by_name.next())?;
    Some(found.1)
}

/// Returns the modules that have a page, with the page.
fn modules() -> impl Iterator<Item = (&'static str, &'static str)> {
    MODULES.split("\n## ").skip(1).filter_map(|text| Some((text.lines().next()?, text)))
}

/// Returns the meaning of a reason: the first paragraph of its page.
pub(crate) fn meaning(code: u8) -> Option<&'static str> {
    let page = pages().find(|page| page.code == code)?;
    page.text.split("\n\n").nth(1)
}

impl Page {
    /// Whether this is the number, the name, or a part of the name in any case.
    fn matches(&self, wanted: &str) -> bool {
        let name = drop::label(self.code).unwrap_or_default();
        match wanted.parse::<u8>() {
            Ok(code) => code == self.code,
            // A whole name may be a part of another one.
            Err(_) if named(wanted).is_some() => name.eq_ignore_ascii_case(wanted),
            Err(_) => name.to_lowercase().contains(&wanted.to_lowercase()),
        }
    }
}

/// Returns the reason with this number or whole name.
fn named(wanted: &str) -> Option<(u8, &'static str)> {
    let all = (drop::FIRST..=u8::MAX).filter_map(|code| Some((code, drop::label(code)?)));
    let code = wanted.parse::<u8>().ok();
    all.into_iter().find(|(known, name)| Some(*known) == code || name.eq_ignore_ascii_case(wanted))
}

fn pages() -> impl Iterator<Item = Page> {
    PAGES.split("\n## ").skip(1).filter_map(|text| {
        let (code, _) = text.split_once(':')?;
        Some(Page { code: code.parse().ok()?, text })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use clap::CommandFactory as _;

    use super::*;
    use crate::commands::Arguments;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    /// Returns the names of all constants of reasons, with their codes.
    fn constants() -> BTreeMap<String, u8> {
        let text = fs::read_to_string(format!("{ROOT}/ebpf/abi/src/drop.rs")).unwrap();
        let constant = |line: &str| {
            let (name, code) = line.strip_prefix("pub const ")?.split_once(": u8 = ")?;
            Some((name.to_owned(), code.trim_end_matches(';').parse().ok()?))
        };
        text.lines().filter_map(constant).filter(|(name, _)| name != "FIRST").collect()
    }

    /// Adds the words of the sources below a folder.
    fn words(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                words(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let split = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
                found.extend(text.split(split).map(str::to_owned));
            }
        }
    }

    #[test]
    fn each_reason_of_the_programs_has_a_page_under_its_name_and_no_other_has_one() {
        let mut used = BTreeSet::new();
        words(Path::new(&format!("{ROOT}/ebpf/programs/src")), &mut used);
        let emitted: BTreeSet<u8> =
            constants().into_iter().filter(|(name, _)| used.contains(name)).map(|(_, code)| code).collect();
        assert!(emitted.len() > 20, "{emitted:?}");
        assert_eq!(pages().map(|page| page.code).collect::<BTreeSet<u8>>(), emitted);
        for page in pages() {
            let heading = page.text.lines().next().unwrap();
            assert_eq!(heading, format!("{}: {}", page.code, drop::label(page.code).unwrap()));
            assert!(page.text.contains("\nCauses: ") && page.text.contains("\n- `apiary "), "{heading}");
        }
    }

    #[test]
    fn each_command_of_a_page_exists() {
        let mut count = 0;
        let words = PAGES.split('`').skip(1).step_by(2).chain(MODULES.split('`').skip(1).step_by(2));
        for command in words.filter(|text| text.starts_with("apiary ")) {
            let word = |word| match word {
                "ID" => "7",
                "ADDRESS" => "10.0.0.1",
                "MODULE" => "133",
                word => word,
            };
            let parsed = Arguments::command().try_get_matches_from(command.split(' ').map(word));
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
            count += 1;
        }
        assert!(count > 140, "{count}");
    }

    #[test]
    fn each_page_of_a_module_has_a_meaning_causes_and_a_command() {
        for (module, text) in modules() {
            let parts: Vec<&str> = text.split("\n\n").collect();
            assert!(parts.len() >= 4 && parts[2].starts_with("Causes: "), "{module}: {parts:?}");
            assert!(parts[3].starts_with("- `apiary "), "{module}: {parts:?}");
        }
    }

    #[test]
    fn reasons_are_found_by_number_and_name() {
        let explain = |words: &[&str]| {
            let options = ExplainOptions { reason: words.iter().map(|word| (*word).to_owned()).collect() };
            let mut out = Vec::new();
            run(&options, &mut out)
                .map(|()| String::from_utf8(out).unwrap())
                .map_err(|error| error.to_string())
        };
        let page = explain(&["133"]).unwrap();
        assert!(page.starts_with("133: Policy denied\n\n") && page.contains("apiary why"), "{page}");
        assert_eq!(explain(&["policy", "denied"]), Ok(page.clone()), "not the denylist");
        assert!(explain(&["denylist"]).unwrap().starts_with("181: "));
        assert!(explain(&["checksum"]).unwrap().starts_with("154: "));
        assert_eq!(explain(&[]).unwrap().lines().count(), pages().count() + modules().count());
        let page = explain(&["agent.datapath.loader"]).unwrap();
        assert!(page.starts_with("agent.datapath.loader\n\nPrograms are not loaded"), "{page}");
        assert_eq!(explain(&["agent.datapath.loader.tunnel"]), Ok(page), "not the module of the name");
        assert!(explain(&["tunnel"]).unwrap().starts_with("agent.datapath.tunnel\n"));
        assert!(explain(&["agent.datapath.loaders"]).unwrap_err().contains("no drop reason or module"));
        assert!(explain(&["nat"]).unwrap_err().contains("167, 168"));
        assert_eq!(
            explain(&["200"]).unwrap_err(),
            "the programs of this agent do not drop for 200 (IGMP subscribed)"
        );
        assert!(explain(&["nothing"]).unwrap_err().contains("no drop reason"));
    }
}
