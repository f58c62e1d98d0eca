package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// plain has a number only.
type plain struct{ id uint64 }

func (*plain) TableHeader() []string { return []string{"ID"} }
func (p *plain) TableRow() []string  { return []string{strconv.FormatUint(p.id, 10)} }

func newPlain(id uint64) *plain { return &plain{id} }

var plainID = statedb.Index[*plain, uint64]{
	Name:       "id",
	FromObject: func(p *plain) index.KeySet { return index.NewKeySet(index.Uint64(p.id)) },
	FromKey:    index.Uint64,
	Unique:     true,
}

// tagged has a tag that others share.
type tagged struct {
	id  uint64
	tag string
}

func (*tagged) TableHeader() []string { return []string{"ID", "Tag"} }
func (t *tagged) TableRow() []string  { return []string{strconv.FormatUint(t.id, 10), t.tag} }

var tags = []string{"tag-0", "tag-1", "tag-2", "tag-3", "tag-4", "tag-5", "tag-6", "tag-7", "tag-8", "tag-9"}

func newTagged(id uint64) *tagged { return &tagged{id, tags[id%10]} }

var taggedID = statedb.Index[*tagged, uint64]{
	Name:       "id",
	FromObject: func(t *tagged) index.KeySet { return index.NewKeySet(index.Uint64(t.id)) },
	FromKey:    index.Uint64,
	Unique:     true,
}

var taggedTag = statedb.Index[*tagged, string]{
	Name:       "tag",
	FromObject: func(t *tagged) index.KeySet { return index.NewKeySet(index.String(t.tag)) },
	FromKey:    index.String,
}

// named has a name of its own.
type named struct {
	id   uint64
	name string
}

func (*named) TableHeader() []string { return []string{"ID", "Name"} }
func (n *named) TableRow() []string  { return []string{strconv.FormatUint(n.id, 10), n.name} }

var namedID = statedb.Index[*named, uint64]{
	Name:       "id",
	FromObject: func(n *named) index.KeySet { return index.NewKeySet(index.Uint64(n.id)) },
	FromKey:    index.Uint64,
	Unique:     true,
}

var namedName = statedb.Index[*named, string]{
	Name:       "name",
	FromObject: func(n *named) index.KeySet { return index.NewKeySet(index.String(n.name)) },
	FromKey:    index.String,
	Unique:     true,
}

func plainTable() (*statedb.DB, statedb.RWTable[*plain]) {
	db := statedb.New()
	return db, table(db, "plain", plainID)
}

func taggedTable() (*statedb.DB, statedb.RWTable[*tagged]) {
	db := statedb.New()
	return db, table(db, "tagged", taggedID, taggedTag)
}

func init() {
	writes()
	transactions()
	reads()
	changes()
	for _, count := range []int{4, 16, 128, 1024} {
		rows[fmt.Sprintf("WatchSet_%d", count)] = func() []float64 { return watchSet(count) }
	}
	rows["X_RandomLookup beside a writer"] = besideWriter
}

// plainRow is a row of a table of so many plain ones.
func plainRow(name string, filled, items int, f func(*statedb.DB, statedb.RWTable[*plain]) func()) {
	rows[name] = func() []float64 {
		db, table := plainTable()
		fill(db, table, filled, newPlain)
		return row(items, f(db, table))
	}
}

func taggedRow(name string, filled, items int, f func(*statedb.DB, statedb.RWTable[*tagged]) func()) {
	rows[name] = func() []float64 {
		db, table := taggedTable()
		fill(db, table, filled, newTagged)
		return row(items, f(db, table))
	}
}

func writes() {
	for _, count := range []int{1, 10, 100, 1000} {
		plainRow(fmt.Sprintf("DB_WriteTxn_%d", count), 0, count,
			func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
				return func() { fill(db, table, count, newPlain) }
			})
	}
	taggedRow("DB_WriteTxn_100_SecondaryIndex", 0, 100,
		func(db *statedb.DB, table statedb.RWTable[*tagged]) func() {
			return func() { fill(db, table, 100, newTagged) }
		})
	plainRow("DB_Modify", 1000, 1000, func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
		return func() {
			txn := db.WriteTxn(table)
			for id := range uint64(1000) {
				_, _, err := table.Modify(txn, newPlain(id), func(old, new *plain) *plain {
					return newPlain(old.id | new.id)
				})
				must(err)
			}
			txn.Commit()
		}
	})
	plainRow("DB_GetInsert", 1000, 1000, func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
		return func() {
			txn := db.WriteTxn(table)
			for id := range uint64(1000) {
				if _, _, found := table.Get(txn, plainID.Query(id)); !found {
					panic(id)
				}
				insert(table, txn, newPlain(id))
			}
			txn.Commit()
		}
	})
	taggedRow("DB_RandomReplace", 1000, 1000, func(db *statedb.DB, table statedb.RWTable[*tagged]) func() {
		return func() {
			txn := db.WriteTxn(table)
			for at := range uint64(1000) {
				insert(table, txn, newTagged(at*7919%1000))
			}
			txn.Commit()
		}
	})
	// Into an empty table, and aborted.
	inserts := func(name string, each func(table statedb.RWTable[*plain], txn statedb.WriteTxn, at uint64)) {
		rows[name] = func() []float64 {
			db, table := plainTable()
			return timed(1000, func(times int) (sum took) {
				for range times {
					txn := db.WriteTxn(table)
					begin := now()
					for at := range uint64(1000) {
						each(table, txn, at)
					}
					txn.Abort()
					took := begin.since()
					sum.wall, sum.cpu = sum.wall+took.wall, sum.cpu+took.cpu
				}
				return sum
			})
		}
	}
	inserts("DB_RandomInsert", func(table statedb.RWTable[*plain], txn statedb.WriteTxn, at uint64) {
		insert(table, txn, newPlain(at*7919%1000))
	})
	inserts("DB_SequentialInsert", func(table statedb.RWTable[*plain], txn statedb.WriteTxn, at uint64) {
		insert(table, txn, newPlain(at))
	})
	inserts("DB_SequentialInsert_Prefix", func(table statedb.RWTable[*plain], txn statedb.WriteTxn, at uint64) {
		insert(table, txn, newPlain(at))
		for range 5 {
			if !first(table.Prefix(txn, plainID.Query(at))) {
				panic(at)
			}
		}
	})
	oneIn := func(count int) func(*statedb.DB, statedb.RWTable[*plain]) func() {
		return func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
			id := uint64(0)
			return func() {
				id = (id + 7919) % uint64(count)
				txn := db.WriteTxn(table)
				insert(table, txn, newPlain(id))
				txn.Commit()
			}
		}
	}
	plainRow("X_WriteTxn_1_in_1k_table", 1000, 1, oneIn(1000))
	plainRow("X_WriteTxn_1_in_100k_table", many, 1, oneIn(many))
	taggedRow("X_WriteTxn_1_in_100k_table_SecondaryIndex", many, 1,
		func(db *statedb.DB, table statedb.RWTable[*tagged]) func() {
			id := uint64(0)
			return func() {
				id = (id + 7919) % many
				txn := db.WriteTxn(table)
				insert(table, txn, newTagged(id))
				txn.Commit()
			}
		})
}

func first[T any](found func(yield func(T, statedb.Revision) bool)) bool {
	for range found {
		return true
	}
	return false
}

func transactions() {
	// The last of so many tables.
	last := func(count int) (*statedb.DB, statedb.RWTable[*plain]) {
		db := statedb.New()
		for i := range count - 1 {
			table(db, fmt.Sprintf("t%d", i), plainID)
		}
		return db, table(db, "last", plainID)
	}
	for name, count := range map[string]int{
		"DB_WriteTxn_CommitOnly_1Table": 1, "X_WriteTxn_CommitOnly_10Tables": 10,
	} {
		rows[name] = func() []float64 {
			db, table := last(count)
			return row(1, func() { db.WriteTxn(table).Commit() })
		}
	}
	plainRow("DB_NewWriteTxn", 0, 1, func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
		return func() { db.WriteTxn(table).Abort() }
	})
	// Many a call: the call takes longer than what is called.
	snapshot := func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
		return func() {
			for range 1000 {
				sink = db.ReadTxn()
			}
		}
	}
	plainRow("DB_NewReadTxn", 0, 1000, snapshot)
	plainRow("X_Reader_Latest", 0, 1000, snapshot)
}

var sink statedb.ReadTxn

// count panics unless so many have an odd number.
func count(plains func(yield func(*plain, statedb.Revision) bool), odd uint64) {
	var sum uint64
	for plain := range plains {
		sum += plain.id & 1
	}
	if sum != odd {
		panic(sum)
	}
}

func reads() {
	lookup := func(name string, filled int, each func(*statedb.DB, statedb.RWTable[*plain], statedb.ReadTxn, uint64) bool) {
		plainRow(name, filled, filled, func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
			return func() {
				txn := db.ReadTxn()
				for at := range uint64(filled) {
					if !each(db, table, txn, at) {
						panic(at)
					}
				}
			}
		})
	}
	get := func(_ *statedb.DB, table statedb.RWTable[*plain], txn statedb.ReadTxn, at uint64) bool {
		_, _, found := table.Get(txn, plainID.Query(at))
		return found
	}
	lookup("DB_SequentialLookup", 1000, get)
	lookup("DB_RandomLookup", 1000, func(db *statedb.DB, table statedb.RWTable[*plain], txn statedb.ReadTxn, at uint64) bool {
		return get(db, table, txn, at*7919%1000)
	})
	lookup("X_GetWatch", 1000, func(_ *statedb.DB, table statedb.RWTable[*plain], txn statedb.ReadTxn, at uint64) bool {
		_, _, watch, _ := table.GetWatch(txn, plainID.Query(at))
		select {
		case <-watch:
			return false
		default:
			return true
		}
	})
	lookup("DB_FullIteration_Get", many, get)
	lookup("DB_FullIteration_ReadTxnGet", many, func(db *statedb.DB, table statedb.RWTable[*plain], _ statedb.ReadTxn, at uint64) bool {
		return get(db, table, db.ReadTxn(), at)
	})
	rows["DB_FullIteration_Get_Secondary"] = func() []float64 {
		db := statedb.New()
		table := table(db, "named", namedID, namedName)
		fill(db, table, many, func(id uint64) *named { return &named{id, fmt.Sprintf("name-%d", id)} })
		var queries []statedb.Query[*named]
		for id := range many {
			queries = append(queries, namedName.Query(fmt.Sprintf("name-%d", id)))
		}
		return row(many, func() {
			txn := db.ReadTxn()
			for _, query := range queries {
				if _, _, found := table.Get(txn, query); !found {
					panic("unknown")
				}
			}
		})
	}
	rows["DB_Prefix_SecondaryIndex"] = func() []float64 {
		db, table := taggedTable()
		fill(db, table, 1000, func(id uint64) *tagged { return &tagged{id, tags[0]} })
		txn := db.ReadTxn()
		query := taggedTag.Query("tag")
		return row(1000, func() {
			found := 0
			for range table.Prefix(txn, query) {
				found++
			}
			if found != 1000 {
				panic(found)
			}
		})
	}
	iteration := func(name string, items int, each func(statedb.RWTable[*plain], statedb.ReadTxn)) {
		plainRow(name, many, items, func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
			txn := db.ReadTxn()
			return func() { each(table, txn) }
		})
	}
	iteration("DB_FullIteration_All", many, func(table statedb.RWTable[*plain], txn statedb.ReadTxn) {
		count(table.All(txn), many/2)
	})
	everything := plainID.QueryFromKey(index.Key{})
	iteration("DB_FullIteration_Prefix", many, func(table statedb.RWTable[*plain], txn statedb.ReadTxn) {
		count(table.Prefix(txn, everything), many/2)
	})
	iteration("X_LowerBound_half", many/2, func(table statedb.RWTable[*plain], txn statedb.ReadTxn) {
		count(table.LowerBound(txn, plainID.Query(many/2)), many/4)
	})
	iteration("X_ByRevision", many, func(table statedb.RWTable[*plain], txn statedb.ReadTxn) {
		count(table.LowerBound(txn, statedb.ByRevision[*plain](0)), many/2)
	})
}

func changes() {
	turnover := func(db *statedb.DB, table statedb.RWTable[*plain], seen func(statedb.ReadTxn)) {
		txn := db.WriteTxn(table)
		for id := range uint64(1000) {
			insert(table, txn, newPlain(id))
		}
		seen(txn.Commit())
		txn = db.WriteTxn(table)
		for id := range uint64(1000) {
			_, _, err := table.Delete(txn, newPlain(id))
			must(err)
		}
		seen(txn.Commit())
	}
	plainRow("DB_Changes_Baseline", 0, 1000, func(db *statedb.DB, table statedb.RWTable[*plain]) func() {
		return func() { turnover(db, table, func(statedb.ReadTxn) {}) }
	})
	rows["DB_Changes"] = func() []float64 {
		db, table := plainTable()
		// Clears away deleted rows that have been seen.
		must(db.Start())
		defer func() { must(db.Stop()) }()
		txn := db.WriteTxn(table)
		changes, err := table.Changes(txn)
		must(err)
		txn.Commit()
		return row(1000, func() {
			turnover(db, table, func(txn statedb.ReadTxn) {
				seen := 0
				batch, _ := changes.Next(txn)
				for range batch {
					seen++
				}
				if seen != 1000 {
					panic(seen)
				}
			})
		})
	}
}

// watchSet has so many watches, one of which is closed, found, and replaced.
func watchSet(count int) []float64 {
	db, table := plainTable()
	fill(db, table, count, newPlain)
	txn := db.ReadTxn()
	set := statedb.NewWatchSet()
	for id := 1; id < count; id++ {
		_, _, watch, _ := table.GetWatch(txn, plainID.Query(uint64(id)))
		set.Add(watch)
	}
	closed := make(chan struct{})
	close(closed)
	return row(1, func() {
		set.Add(closed)
		found, err := set.Wait(context.Background(), 0)
		must(err)
		if len(found) != 1 {
			panic(len(found))
		}
	})
}

// besideWriter is how much longer a get takes while the other processor writes the same table, and how many
// transactions a second it writes.
func besideWriter() []float64 {
	db, table := plainTable()
	fill(db, table, many, newPlain)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := func() time.Duration {
		const ofThread = 1 // RUSAGE_THREAD
		var usage syscall.Rusage
		must(syscall.Getrusage(ofThread, &usage))
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	get := func() float64 {
		begin := thread()
		for range 1000 {
			txn := db.ReadTxn()
			for range 100 {
				if _, _, found := table.Get(txn, plainID.Query(rand.Uint64N(many))); !found {
					panic("unknown")
				}
			}
		}
		return float64(thread() - begin)
	}
	get()
	var alone, beside []float64
	commits, writing := 0, 0.0
	for range rounds {
		alone = append(alone, get())
		var stop atomic.Bool
		done := make(chan struct{})
		begin := time.Now()
		go func() {
			defer close(done)
			for !stop.Load() {
				txn := db.WriteTxn(table)
				for range 10 {
					insert(table, txn, newPlain(rand.Uint64N(many)))
				}
				txn.Commit()
				commits++
			}
		}()
		beside = append(beside, get())
		stop.Store(true)
		<-done
		writing += time.Since(begin).Seconds()
	}
	slices.Sort(alone)
	slices.Sort(beside)
	return []float64{beside[rounds/2] / alone[rounds/2], float64(commits) / writing}
}
