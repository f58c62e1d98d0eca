package main

import (
	"runtime"
	"sync"

	"github.com/cilium/statedb"
)

func init() {
	rows["X_PingPong, 1 thread"] = func() []float64 { return pingPong(1) }
	rows["X_PingPong, 2 threads"] = func() []float64 { return pingPong(2) }
	rows["DB_PropagationDelay"] = propagation
}

// fiveTimes is the least of five, by the clock on the wall.
func fiveTimes(items int, f func()) []float64 {
	var all []float64
	for range 5 {
		runtime.GC()
		begin := now()
		f()
		all = append(all, float64(begin.since().wall.Nanoseconds())/float64(items))
	}
	least := all[0]
	for _, took := range all {
		least = min(least, took)
	}
	return []float64{least}
}

// pingPong is how long it takes through two tables and back.
func pingPong(threads int) []float64 {
	const turns = 20_000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	return fiveTimes(turns, func() {
		pingDB, ping := plainTable()
		pongDB, pong := plainTable()
		fill(pingDB, ping, 1, newPlain)
		var both sync.WaitGroup
		both.Go(func() { answer(pingDB, ping, pongDB, pong, turns) })
		both.Go(func() { answer(pongDB, pong, pingDB, ping, turns) })
		both.Wait()
	})
}

// answer writes to one table whenever the other has been written.
func answer(fromDB *statedb.DB, from statedb.RWTable[*plain], toDB *statedb.DB, to statedb.RWTable[*plain], turns uint64) {
	for turn := uint64(1); turn <= turns; turn++ {
		for {
			_, revision, watch, found := from.GetWatch(fromDB.ReadTxn(), plainID.Query(0))
			if found && revision >= turn {
				break
			}
			<-watch
		}
		fill(toDB, to, 1, newPlain)
	}
}

// propagation is ten objects into a table, found there by one who copies them into a second, found there.
func propagation() []float64 {
	const batches = 2000
	return fiveTimes(batches*10, func() {
		db := statedb.New()
		must(db.Start())
		defer func() { must(db.Stop()) }()
		first, second := table(db, "first", plainID), table(db, "second", plainID)
		read := func(table statedb.RWTable[*plain]) func(func(*plain)) {
			txn := db.WriteTxn(table)
			changes, err := table.Changes(txn)
			must(err)
			txn.Commit()
			// The next changes, ten at least.
			return func(each func(*plain)) {
				for seen := 0; seen < 10; {
					batch, watch := changes.Next(db.ReadTxn())
					before := seen
					for change := range batch {
						each(change.Object)
						seen++
					}
					if seen == before {
						<-watch
					}
				}
			}
		}
		fromFirst, fromSecond := read(first), read(second)
		var copying sync.WaitGroup
		copying.Go(func() {
			for range batches {
				var objects []*plain
				fromFirst(func(object *plain) { objects = append(objects, object) })
				txn := db.WriteTxn(second)
				for _, object := range objects {
					insert(second, txn, newPlain(object.id))
				}
				txn.Commit()
			}
		})
		for batch := range uint64(batches) {
			txn := db.WriteTxn(first)
			for id := range uint64(10) {
				insert(first, txn, newPlain(batch*10+id))
			}
			txn.Commit()
			fromSecond(func(*plain) {})
		}
		copying.Wait()
	})
}
