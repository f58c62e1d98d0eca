//! The cookies of map entries: ids of the texts that rules have for the log of verdicts. The programs copy the cookie of
//! the deciding entry into each verdict event, so that an event names the texts of its own moment.
//!
//! A cookie stands for all texts of an entry's rules. It keeps its texts as long as a map has it, across restarts: the
//! index is on disk before an entry refers to it. The id of released texts is not used again soon, as events with it may
//! still be under way.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use policy_engine::{Resolved, Row};
use serde::{Deserialize, Serialize};
use state_file::{Error, Schema, StateFile, Version, quarantine};

use crate::model::logs::{LogTexts, PolicyLog};

/// The file, in the state folder.
pub(crate) const FILE: &str = "policy-logs.json";

/// Returns the version of the file.
pub(crate) fn version() -> Version {
    Version::of::<File>()
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    /// The id that was given out last.
    last: u32,
    /// The texts of each cookie.
    cookies: BTreeMap<u32, LogTexts>,
}

impl Schema for File {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "the texts of policies that verdict events name by a number";
}

/// Changed rows of the table `policy-logs`; `None` for released cookies.
pub(crate) type LogChanges = BTreeMap<u32, Option<LogTexts>>;

/// The index.
#[derive(Debug, Default)]
pub(crate) struct LogCookies {
    /// Shared with readers.
    by_texts: Arc<BTreeMap<LogTexts, u32>>,
    by_cookie: BTreeMap<u32, LogTexts>,
    last: u32,
    /// `None` if nothing is stored.
    file: Option<StateFile>,
    /// Whether the file lacks changes.
    is_stale: bool,
    changes: LogChanges,
}

impl LogCookies {
    /// Reads the index of the previous run. A damaged file is quarantined: entries get other cookies then.
    pub(crate) fn restore(file: StateFile) -> Result<LogCookies, Error> {
        let File { last, cookies } = match file.load() {
            Err(error @ Error::Damaged { .. }) => {
                let kept = quarantine(file.path())?;
                tracing::error!(
                    %error,
                    kept = %kept.display(),
                    "A damaged state file was quarantined; texts of policies in the log of verdicts get other numbers"
                );
                File::default()
            }
            read => read?.unwrap_or_default(),
        };
        let by_texts = cookies.iter().map(|(cookie, texts)| (texts.clone(), *cookie)).collect();
        let changes = cookies.iter().map(|(cookie, texts)| (*cookie, Some(texts.clone()))).collect();
        Ok(LogCookies {
            by_texts: Arc::new(by_texts),
            by_cookie: cookies,
            last,
            file: Some(file),
            is_stale: false,
            changes,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_cookie.is_empty()
    }

    /// Returns the cookies by their texts.
    pub(crate) fn index(&self) -> Arc<BTreeMap<LogTexts, u32>> {
        self.by_texts.clone()
    }

    /// Returns the texts of a cookie.
    pub(crate) fn texts(&self, cookie: u32) -> Option<&LogTexts> {
        self.by_cookie.get(&cookie)
    }

    /// Returns the cookie of a row; 0 if its rules have no text, or none that is in the index.
    pub(crate) fn of_row(&self, resolved: &Resolved, row: &Row) -> u32 {
        self.by_texts.get(&*resolved.logs(*row)).copied().unwrap_or_default()
    }

    /// Returns a function from rows to cookies, which adds texts to the index. Rows with the same rules cost a lookup.
    pub(crate) fn of_rows<'a>(&'a mut self, resolved: &'a Resolved) -> impl FnMut(&Row) -> u32 + 'a {
        let mut known: HashMap<u32, u32> = HashMap::new();
        move |row| match resolved.has_logs() {
            true => *known.entry(row.origin).or_insert_with(|| self.upsert(resolved.logs(*row))),
            false => 0,
        }
    }

    /// Returns the cookie of these texts, a new one unless they have one; 0 for none.
    fn upsert(&mut self, texts: Vec<Arc<str>>) -> u32 {
        if texts.is_empty() {
            return 0;
        }
        if let Some(cookie) = self.by_texts.get(&*texts) {
            return *cookie;
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.by_cookie.contains_key(&self.last) {
                break;
            }
        }
        let texts = LogTexts::from(texts);
        Arc::make_mut(&mut self.by_texts).insert(texts.clone(), self.last);
        self.by_cookie.insert(self.last, texts.clone());
        self.changes.insert(self.last, Some(texts));
        self.is_stale = true;
        self.last
    }

    /// Releases all cookies but these.
    pub(crate) fn retain(&mut self, used: &HashSet<u32>) {
        let unused: Vec<u32> =
            self.by_cookie.keys().copied().filter(|cookie| !used.contains(cookie)).collect();
        for cookie in unused {
            if let Some(texts) = self.by_cookie.remove(&cookie) {
                Arc::make_mut(&mut self.by_texts).remove(&texts);
            }
            self.changes.insert(cookie, None);
            self.is_stale = true;
        }
    }

    /// Writes the file if it lacks changes. After an error the next call tries again: policy does not wait for the log.
    pub(crate) fn store(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.is_stale) else { return };
        let content = File { last: self.last, cookies: self.by_cookie.clone() };
        match file.store(&content) {
            Ok(()) => self.is_stale = false,
            Err(error) => {
                tracing::warn!(%error, "Unable to store the texts of policies for the log of verdicts, trying again");
            }
        }
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&mut self) -> LogChanges {
        std::mem::take(&mut self.changes)
    }
}

impl PolicyLog {
    /// Applies changes to the table.
    pub(crate) fn apply(table: &statedb::RwTable<PolicyLog>, changes: LogChanges) {
        if changes.is_empty() {
            return;
        }
        table.transact(|txn| {
            for (cookie, texts) in changes {
                match texts {
                    Some(texts) => drop(txn.insert(PolicyLog { cookie, texts })),
                    None => drop(txn.delete(PolicyLog::by_cookie(cookie))),
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<Arc<str>> {
        texts.iter().map(|text| Arc::from(*text)).collect()
    }

    #[test]
    fn cookies_keep_their_texts_over_restarts_and_are_not_reused_soon() {
        let folder = tempfile::tempdir().unwrap();
        let file = || StateFile::new(folder.path().join(FILE));
        let mut first = LogCookies::restore(file()).unwrap();
        assert_eq!(first.upsert(texts(&[])), 0);
        let (a, b) = (first.upsert(texts(&["a"])), first.upsert(texts(&["b", "a"])));
        assert_eq!((a, b, first.upsert(texts(&["a"]))), (1, 2, 1));
        first.store();

        let mut second = LogCookies::restore(file()).unwrap();
        assert_eq!(
            second.take_changes().keys().copied().collect::<Vec<_>>(),
            [a, b],
            "readers know them at once"
        );
        assert_eq!(second.upsert(texts(&["b", "a"])), b);
        second.retain(&HashSet::from([0, b]));
        assert_eq!(second.take_changes(), BTreeMap::from([(a, None)]));
        assert_eq!((second.texts(a), second.index().len()), (None, 1));
        second.store();

        // A released number has other texts neither in this run nor in the next one.
        let mut third = LogCookies::restore(file()).unwrap();
        assert_eq!((third.upsert(texts(&["c"])), third.upsert(texts(&["a"]))), (3, 4));
        third.last = u32::MAX;
        assert_eq!(third.upsert(texts(&["d"])), 1, "neither 0 nor one in use");
        assert_eq!(third.upsert(texts(&["e"])), 5);
    }

    #[test]
    fn a_damaged_index_is_quarantined_and_a_newer_one_stops_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, "{\"version\":1,\"last\":-1}").unwrap();
        assert!(LogCookies::restore(StateFile::new(&path)).unwrap().is_empty());
        assert!(!path.exists());
        std::fs::write(&path, "{\"version\":99}").unwrap();
        assert!(matches!(LogCookies::restore(StateFile::new(&path)), Err(Error::Newer { .. })));
    }

    #[test]
    fn a_failed_write_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let mut cookies =
            LogCookies::restore(StateFile::new(folder.path().join("missing").join(FILE))).unwrap();
        cookies.file = Some(StateFile::new(blocked.join(FILE)));
        cookies.upsert(texts(&["a"]));
        cookies.store();
        assert!(cookies.is_stale);
        std::fs::remove_file(&blocked).unwrap();
        cookies.store();
        assert!(!cookies.is_stale && blocked.join(FILE).exists());
    }
}
