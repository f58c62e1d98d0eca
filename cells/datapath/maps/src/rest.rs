//! The operations `GET /map`, `GET /map/{name}` and `GET /map/{name}/events`: pinned maps and their entries, read on
//! request, and recent writes to them.

use std::sync::Arc;

use api::{Operation, Request, Response, Route};
use api_models::{BpfMap, BpfMapEntry, BpfMapList};
use bpf::{MapType, RawMap};

use crate::maps::Maps;
use crate::specs::OWN_MAPS;
use crate::text::{self, Shown};

/// Returns the three operations.
pub(crate) fn routes(maps: Arc<Maps>) -> Vec<Route> {
    let written = maps.clone();
    let list = {
        let maps = maps.clone();
        // On a blocking thread: reading large maps takes milliseconds and must not delay other requests.
        Route::new(Operation::GetMap, move |_: Request| {
            let maps = maps.clone();
            async move { hive::blocking(move || all(&maps)).await }
        })
    };
    let one = Route::new(Operation::GetMapName, move |request: Request| {
        let (maps, name) = (maps.clone(), request.param("name").to_owned());
        async move { hive::blocking(move || named(&maps, &name)).await }
    });
    let events = Route::new(Operation::GetMapNameEvents, move |request: Request| {
        let journal = written.journals.of(request.param("name"));
        let follow = request.query_bool("follow").unwrap_or(false);
        std::future::ready(journal.map_or_else(|| Response::empty(404), |journal| journal.answer(follow)))
    });
    vec![list, one, events]
}

fn all(maps: &Maps) -> Response {
    let names = match maps.fs().map_names() {
        Ok(names) => names,
        Err(e) => return Response::error(500, e.to_string()),
    };
    let opened = names.iter().filter_map(|name| model(maps, name));
    Response::json(200, &BpfMapList { maps: opened.collect::<Vec<_>>().into() })
}

fn named(maps: &Maps, name: &str) -> Response {
    match maps.fs().map_names() {
        Ok(names) if names.iter().any(|n| n == name) => {}
        Ok(_) => return Response::empty(404),
        Err(e) => return Response::error(500, e.to_string()),
    }
    match model(maps, name) {
        Some(map) => Response::json(200, &map),
        None => Response::empty(404),
    }
}

/// Returns the API model of a map; `None` for maps that the API does not list.
fn model(maps: &Maps, name: &str) -> Option<BpfMap> {
    if !is_listed(name) {
        return None;
    }
    let path = maps.path(name);
    let map = RawMap::open(&path).ok()?;
    if matches!(map.layout().map_type, MapType::ProgArray | MapType::PerfEventArray) {
        return None;
    }
    let shown = text::shown(name);
    let mut entries = Vec::new();
    if matches!(shown, Shown::Rows | Shown::Synced) {
        let action = if shown == Shown::Synced { "sync" } else { "" };
        // A map that disappears during the read has no entries.
        entries = text::rows(&map)
            .unwrap_or_default()
            .into_iter()
            .map(|row| BpfMapEntry {
                desired_action: action.to_owned(),
                key: row.key,
                value: row.value,
                ..BpfMapEntry::default()
            })
            .collect();
    }
    let cache = if shown == Shown::Null { None } else { Some(entries) };
    Some(BpfMap { cache: api_models::List(cache), path: path.display().to_string() })
}

/// Whether the API lists a map. Cilium lists maps that its agent uses, not those that only programs use; Apiary's own
/// are private.
fn is_listed(name: &str) -> bool {
    name.starts_with("cilium_") && !OWN_MAPS.contains(&name) && !name.ends_with("_frag_datagrams")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_maps_that_cilium_lists_are_listed() {
        assert!(is_listed("cilium_lxc"));
        assert!(is_listed("cilium_policy_v2_00135"));
        assert!(!is_listed("ep_config"));
        assert!(!is_listed("cilium_ipv4_frag_datagrams"));
    }
}
