package main

import (
	"context"
	"iter"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"
)

// object is to be reconciled.
type object struct {
	id     uint64
	status reconciler.Status
}

func (*object) TableHeader() []string { return []string{"ID", "Status"} }
func (o *object) TableRow() []string {
	return []string{strconv.FormatUint(o.id, 10), o.status.String()}
}

func newObject(id uint64) *object { return &object{id, reconciler.StatusPending()} }

var objectID = statedb.Index[*object, uint64]{
	Name:       "id",
	FromObject: func(o *object) index.KeySet { return index.NewKeySet(index.Uint64(o.id)) },
	FromKey:    index.Uint64,
	Unique:     true,
}

// objectGroup is of a thousand.
var objectGroup = statedb.Index[*object, uint32]{
	Name:       "group",
	FromObject: func(o *object) index.KeySet { return index.NewKeySet(index.Uint32(uint32(o.id / 1000))) },
	FromKey:    index.Uint32,
}

type nothing struct{}

func (nothing) Update(context.Context, statedb.ReadTxn, statedb.Revision, *object) error { return nil }
func (nothing) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *object) error { return nil }
func (nothing) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*object, statedb.Revision]) error {
	return nil
}

// reconciled runs a reconciler of a table while f works on it.
func reconciled(f func(*statedb.DB, statedb.RWTable[*object], reconciler.Reconciler[*object]), others ...statedb.Indexer[*object]) {
	var (
		db   *statedb.DB
		rows statedb.RWTable[*object]
		r    reconciler.Reconciler[*object]
	)
	h := hive.New(
		statedb.Cell,
		job.Cell,
		cell.Provide(
			cell.NewSimpleHealth,
			func(registry job.Registry, health cell.Health) job.Group { return registry.NewGroup(health) },
		),
		cell.Module("objects", "objects", cell.Invoke(func(params reconciler.Params) error {
			db, rows = params.DB, table(params.DB, "objects", objectID, others...)
			var err error
			r, err = reconciler.Register(params, rows,
				func(o *object) *object { copied := *o; return &copied },
				func(o *object, status reconciler.Status) *object { o.status = status; return o },
				func(o *object) reconciler.Status { return o.status },
				nothing{}, nil,
				reconciler.WithRoundLimits(1000, rate.NewLimiter(rate.Inf, 1000)),
				reconciler.WithoutPruning())
			return err
		})),
	)
	log := slog.New(slog.DiscardHandler)
	must(h.Start(log, context.Background()))
	f(db, rows, r)
	must(h.Stop(log, context.Background()))
}

// write is a transaction of pending objects, and its revision.
func write(db *statedb.DB, table statedb.RWTable[*object], from, to uint64) statedb.Revision {
	txn := db.WriteTxn(table)
	for id := from; id < to; id++ {
		insert(table, txn, newObject(id))
	}
	return table.Revision(txn.Commit())
}

func wait(r reconciler.Reconciler[*object], revision statedb.Revision) {
	reached, _, err := r.WaitUntilReconciled(context.Background(), revision)
	must(err)
	if reached < revision {
		panic(reached)
	}
}

// latency is how many microseconds one object takes among so many others: the half does not take longer, and 99 of 100.
func latency(others uint64) (times []float64) {
	const turns = 2000
	reconciled(func(db *statedb.DB, table statedb.RWTable[*object], r reconciler.Reconciler[*object]) {
		wait(r, write(db, table, 0, others))
		for id := range uint64(turns) {
			begin := now()
			wait(r, write(db, table, id, id+1))
			times = append(times, float64(begin.since().wall.Nanoseconds())/1000)
			time.Sleep(200 * time.Microsecond)
		}
	})
	slices.Sort(times)
	return []float64{times[turns/2], times[turns*99/100]}
}

const million = 1_000_000

func fillMillion(db *statedb.DB, table statedb.RWTable[*object], r reconciler.Reconciler[*object]) took {
	begin := now()
	var revision statedb.Revision
	for batch := range uint64(million / 1000) {
		revision = write(db, table, batch*1000, (batch+1)*1000)
	}
	wait(r, revision)
	took := begin.since()
	for object := range table.All(db.ReadTxn()) {
		if object.status.Kind != reconciler.StatusKindDone {
			panic(object.status)
		}
	}
	return took
}

// resident is in megabytes, by a word of what the kernel says of this process.
func resident(word string) float64 {
	status, err := os.ReadFile("/proc/self/status")
	must(err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, word+":"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			must(err)
			return float64(kib) * 1024 / 1e6
		}
	}
	panic(word)
}

func init() {
	rows["latency among others"] = func() []float64 { return latency(10_000) }
	rows["latency in an empty table"] = func() []float64 { return latency(0) }
	// Objects a second, and nanoseconds of all processors an object.
	rows["throughput"] = func() (answer []float64) {
		reconciled(func(db *statedb.DB, table statedb.RWTable[*object], r reconciler.Reconciler[*object]) {
			took := fillMillion(db, table, r)
			answer = []float64{million / took.wall.Seconds(), float64(took.cpu.Nanoseconds()) / million}
		})
		return answer
	}
	// Megabytes with a million objects, at their most, and bytes an object.
	rows["memory"] = func() (answer []float64) {
		before := resident("VmRSS")
		reconciled(func(db *statedb.DB, table statedb.RWTable[*object], r reconciler.Reconciler[*object]) {
			fillMillion(db, table, r)
			debug.FreeOSMemory()
			live := resident("VmRSS")
			answer = []float64{live, resident("VmHWM"), (live - before) * 1e6 / million}
		}, objectGroup)
		return answer
	}
}
