//! Concurrent readers and writers on real threads, for the sanitizers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use serde::Serialize;
use statedb::{Db, Index, IndexDef, KeyRange, Query, RwTable, Snapshot, Table, TableDisplay, TableSpec};

/// An account; the sum of all balances of a table is constant. There are two such tables.
#[derive(Clone, Serialize)]
struct Account<const SAVINGS: bool> {
    id: u64,
    owner: String,
    balance: i64,
}

// Miri runs this some hundred times slower, and finds races without many rounds.
const ACCOUNTS: u64 = if cfg!(miri) { 12 } else { 300 };
const TOTAL: i64 = ACCOUNTS as i64 * 100;
const COMMITS: u64 = if cfg!(miri) { 8 } else { 400 };

impl<const SAVINGS: bool> Account<SAVINGS> {
    const BY_OWNER: Index<Self, str> = Index::new("owner", |account, keys| keys.add(&account.owner));
}

impl<const SAVINGS: bool> TableSpec for Account<SAVINGS> {
    const NAME: &'static str = if SAVINGS { "savings" } else { "accounts" };
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![Self::BY_OWNER.def()]
    }
}

impl<const SAVINGS: bool> TableDisplay for Account<SAVINGS> {
    fn columns() -> &'static [&'static str] {
        &["ID", "Balance"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.balance.to_string()]
    }
}

fn account<const SAVINGS: bool>(id: u64, balance: i64) -> Account<SAVINGS> {
    Account { id, owner: format!("owner-{}", id % 7), balance }
}

/// Moves money, and at times a whole account to a distant key, which splits and merges nodes.
fn write<const SAVINGS: bool>(accounts: &RwTable<Account<SAVINGS>>) {
    for round in 0..COMMITS {
        let (from, to) = (round * 7 % ACCOUNTS, round * 13 % ACCOUNTS);
        let mut w = accounts.write();
        let far = |id: u64| id << 40;
        let place = |w: &statedb::Writer<'_, Account<SAVINGS>>, id| {
            if w.get(Query::primary(id)).is_some() { id } else { far(id) }
        };
        let (from, to) = (place(&w, from), place(&w, to));
        w.update(Query::primary(from), |account| account.balance -= 10);
        w.update(Query::primary(to), |account| account.balance += 10);
        if round % 3 == 0 && from != 0 {
            let moved = if from < ACCOUNTS { far(from) } else { from >> 40 };
            w.update(Query::primary(from), |account| *account = self::account(moved, account.balance));
        }
        if round % 11 == 0 {
            w.abort();
        } else {
            w.commit();
        }
    }
}

fn check<const SAVINGS: bool>(accounts: &Table<Account<SAVINGS>>, snapshot: &Snapshot) {
    let sum = |rows: statedb::Rows<'_, Account<SAVINGS>>| rows.map(|account| account.balance).sum::<i64>();
    assert_eq!(sum(accounts.all(snapshot)), TOTAL);
    assert_eq!(sum(accounts.by_revision(snapshot, 0)), TOTAL);
    let owners =
        (0..7).map(|owner| accounts.list(snapshot, Account::BY_OWNER.query(&format!("owner-{owner}"))));
    assert_eq!(owners.map(sum).sum::<i64>(), TOTAL);
    let (near, far) = (KeyRange::primary(..ACCOUNTS), KeyRange::primary(ACCOUNTS..));
    assert_eq!(sum(accounts.range(snapshot, near)) + sum(accounts.range(snapshot, far)), TOTAL);
}

#[test]
fn snapshots_are_whole_while_others_write() {
    let db = Db::new();
    let accounts = db.table::<Account<false>>().unwrap();
    let savings = db.table::<Account<true>>().unwrap();
    accounts.transact(|w| (0..ACCOUNTS).for_each(|id| drop(w.insert(account(id, 100)))));
    savings.transact(|w| (0..ACCOUNTS).for_each(|id| drop(w.insert(account(id, 100)))));
    let check_both = |snapshot: &Snapshot| {
        check(&accounts, snapshot);
        check(&savings, snapshot);
    };
    let done = AtomicBool::new(false);
    let writing = || !done.load(Ordering::Relaxed);
    let mut reader = db.reader();
    std::thread::scope(|scope| {
        // Writers of one table exclude each other, those of two tables publish concurrently.
        let writers = [
            scope.spawn(|| write(&accounts)),
            scope.spawn(|| write(&accounts)),
            scope.spawn(|| write(&savings)),
        ];
        // Each reader acquires snapshots in another way, and keeps some for a while.
        scope.spawn(|| {
            let mut held = Vec::new();
            while writing() {
                held.push(db.snapshot());
                check_both(&held[held.len() - 1]);
                held.truncate(if held.len() > 8 { 3 } else { 8 });
            }
            held.iter().for_each(check_both);
        });
        scope.spawn(|| {
            while writing() {
                check_both(reader.latest());
            }
        });
        scope.spawn(|| {
            while writing() {
                let watch = {
                    let snapshot = db.snapshot();
                    let revision = accounts.revision(&snapshot);
                    let (rows, watch) = accounts.range_watch(&snapshot, KeyRange::primary(5..9));
                    assert!(rows.count() <= 4 && revision <= accounts.revision(&db.snapshot()));
                    watch
                };
                watch.blocking_wait(Duration::from_millis(5));
            }
        });
        let written = writers.map(std::thread::ScopedJoinHandle::join);
        // Also after a panic: the readers must end before the scope reports it.
        done.store(true, Ordering::Relaxed);
        written.into_iter().for_each(|written| written.unwrap());
    });
    check_both(&db.snapshot());
}

/// A row that reports the thread that drops it.
#[derive(Serialize)]
struct Traced {
    #[serde(skip)]
    to: Sender<ThreadId>,
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Fails at the end of the test, when the receiver has been dropped.
        let _ = self.to.send(std::thread::current().id());
    }
}

impl TableSpec for Traced {
    const NAME: &'static str = "traced";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        0
    }
}

impl TableDisplay for Traced {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec!["0".to_owned()]
    }
}

#[test]
fn garbage_of_the_last_reader_is_freed_by_an_active_writer() {
    let rows = Db::new().table::<Traced>().unwrap();
    let (sender, dropped) = channel();
    let replace = || drop(rows.transact(|w| drop(w.insert(Traced { to: sender.clone() }))));
    replace();
    let held = rows.snapshot();
    replace();
    let writing = rows.write();
    let reader = |held: Snapshot| {
        std::thread::scope(|scope| scope.spawn(move || (drop(held), std::thread::current().id()).1).join())
    };
    reader(held).unwrap();
    assert!(dropped.try_recv().is_err(), "left to the writer");
    writing.abort();
    assert_eq!(dropped.try_recv(), Ok(std::thread::current().id()));

    let held = rows.snapshot();
    replace();
    let reader = reader(held).unwrap();
    assert_eq!(dropped.try_recv(), Ok(reader), "there is no writer");
}
