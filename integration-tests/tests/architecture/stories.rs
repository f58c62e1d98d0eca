//! The stories of ARCHITECTURE.md lead a reader from place to place by calls, and through few places.

use std::collections::BTreeMap;

use super::root;

/// The largest number of places of each story. A place is a file that a reader opens; to follow every call takes 16 to 37.
const STORIES: [(&str, usize); 4] =
    [("A pod is added", 9), ("A policy changes", 10), ("A service gets a backend", 7), ("A restart", 11)];

/// Functions that routes, hooks, jobs and reconcilers call rather than an earlier place of the story: the place, the
/// function, the file with the call, the call.
const ENTRANCES: [(&str, &str, &str, &str); 9] = [
    (
        "cells/endpoint/endpoints/src/requests/service.rs",
        "create",
        "cells/endpoint/endpoints/src/api/rest.rs",
        "endpoints.create(&body)",
    ),
    (
        "cells/endpoint/endpoints/src/reconcile/regeneration.rs",
        "update_batch",
        "cells/reconciler/src/ops.rs",
        "ops.update_batch(",
    ),
    (
        "cells/endpoint/endpoints/src/reconcile/regeneration.rs",
        "prune",
        "cells/reconciler/src/ops.rs",
        ".prune(&cx, table.all(&snapshot))",
    ),
    (
        "cells/loadbalancer/core/src/reconciler/operations.rs",
        "update_batch",
        "cells/reconciler/src/ops.rs",
        "ops.update_batch(",
    ),
    ("cells/datapath/maps/src/maps.rs", "open", "cells/datapath/maps/src/cell.rs", "opened.open()"),
    (
        "cells/datapath/loader/src/restore/endpoints.rs",
        "restore",
        "cells/datapath/loader/src/cell.rs",
        "crate::restore(&restored)",
    ),
    (
        "cells/endpoint/endpoints/src/restore/start.rs",
        "run",
        "cells/endpoint/endpoints/src/cell.rs",
        "start.run()",
    ),
    ("cells/datapath/loader/src/host_job/run.rs", "run", "cells/datapath/loader/src/cell.rs", "host.run(cx)"),
    (
        "cells/endpoint/endpoints/src/restore/finish.rs",
        "run",
        "cells/endpoint/endpoints/src/cell.rs",
        "finish.run(cx)",
    ),
];

/// Returns a source file without its comments and its unit tests.
fn code(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether code calls a function of this name, or passes it on by its path.
fn calls(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        is_whole && !before.ends_with("fn ") && (after.starts_with('(') || before.ends_with("::"))
    })
}

/// Returns the places that the numbered steps of a story name, each with a function, in order.
fn places<'a>(architecture: &'a str, title: &str) -> Vec<(&'a str, &'a str)> {
    let story = architecture.split(&format!("## {title}\n\n")).nth(1).unwrap_or_else(|| panic!("no {title}"));
    let steps = story.split("\n\n").next().unwrap();
    assert!(steps.starts_with("1. "), "{title}: numbered steps");
    let words: Vec<&str> = steps.split('`').collect();
    let is_path = |word: &str| word.contains('/') && word.ends_with(".rs");
    (1..words.len()).step_by(2).filter(|&i| is_path(words[i])).map(|i| (words[i], words[i + 2])).collect()
}

/// Returns the places to which no earlier one leads, and the stories that are too long.
fn faults(architecture: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (title, limit) in STORIES {
        let mut read: BTreeMap<&str, String> = BTreeMap::new();
        for (i, (place, function)) in places(architecture, title).into_iter().enumerate() {
            let entrance = ENTRANCES.iter().find(|entrance| (entrance.0, entrance.1) == (place, function));
            let is_called = match entrance {
                Some((.., caller, call)) => code(caller).contains(call),
                // The trigger of the story calls the first place.
                None => i == 0 || read.values().any(|code| calls(code, function)),
            };
            if !is_called {
                faults.push(format!("{title}: no earlier place calls {function} of {place}"));
            }
            read.entry(place).or_insert_with(|| code(place));
        }
        if read.len() > limit {
            faults.push(format!("{title}: {} places, of {limit} at most: {:?}", read.len(), read.keys()));
        }
    }
    faults
}

#[test]
fn stories_lead_from_place_to_place_by_calls() {
    let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert_eq!(faults(&architecture), Vec::<String>::new());

    let skips =
        architecture.replace("`cells/loadbalancer/core/src/reconciler/mirror.rs` `write`", "the mirror");
    let expected =
        "A service gets a backend: no earlier place calls put of cells/loadbalancer/core/src/lbmap/kernel.rs";
    assert_eq!(faults(&skips), [expected], "a story with a gap");
    let detour = "`cells/loadbalancer/core/src/writer/select.rs` `select`";
    let longer = architecture.replace("the folder's `select.rs`", detour);
    assert!(faults(&longer)[0].contains("8 places, of 7 at most"), "a story with a detour");
}

#[test]
fn a_definition_is_no_call() {
    assert!(calls("self.upsert(x)", "upsert") && calls("map(Update::upsert)", "upsert"));
    assert!(!calls("fn upsert(x)", "upsert") && !calls("self.upsert_all(x)", "upsert"));
    assert!(!calls("let upsert = 1", "upsert"));
}
