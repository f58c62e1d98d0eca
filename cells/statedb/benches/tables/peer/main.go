// The rows of the benchmark in the original: reads the name of a row from each line, measures it, and answers with a line
// of numbers, which most have two of: nanoseconds an item by the clock on the wall, and of all processors, which the
// garbage collector's threads are part of. Who asks is measuring the same at the same time, so this does nothing between.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/statedb"
)

const (
	// How much a round computes at least, and how many there are.
	round  = 5 * time.Millisecond
	rounds = 30
	many   = 100_000
)

// What there is to ask for.
var rows = map[string]func() []float64{}

// took is time by the clock on the wall, and of all processors.
type took struct{ wall, cpu time.Duration }

var start = time.Now()

func now() took {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return took{time.Since(start), time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
}

func (t took) since() took {
	end := now()
	return took{end.wall - t.wall, end.cpu - t.cpu}
}

// row calls again and again what takes so many items.
func row(items int, f func()) []float64 {
	return timed(items, func(times int) took {
		begin := now()
		for range times {
			f()
		}
		return begin.since()
	})
}

// timed does the same with a function that does it so many times, and takes the time itself.
func timed(items int, f func(times int) took) []float64 {
	times := 1
	for f(times).cpu < round {
		times *= 2
	}
	var all []took
	for range rounds {
		all = append(all, f(times))
	}
	return each(all, times*items)
}

// each is an item's part of the quickest on the wall, and of the median of all processors.
func each(all []took, items int) []float64 {
	var wall, cpu []float64
	for _, t := range all {
		wall = append(wall, float64(t.wall.Nanoseconds())/float64(items))
		cpu = append(cpu, float64(t.cpu.Nanoseconds())/float64(items))
	}
	slices.Sort(wall)
	slices.Sort(cpu)
	return []float64{wall[0], cpu[len(cpu)/2]}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func table[T statedb.TableWritable](db *statedb.DB, name string, primary statedb.Indexer[T], others ...statedb.Indexer[T]) statedb.RWTable[T] {
	table, err := statedb.NewTable(db, name, primary, others...)
	must(err)
	return table
}

func insert[T any](table statedb.RWTable[T], txn statedb.WriteTxn, object T) {
	_, _, err := table.Insert(txn, object)
	must(err)
}

// fill is a transaction that inserts so many.
func fill[T any](db *statedb.DB, table statedb.RWTable[T], count int, make func(id uint64) T) {
	txn := db.WriteTxn(table)
	for id := range uint64(count) {
		insert(table, txn, make(id))
	}
	txn.Commit()
}

func main() {
	names := bufio.NewScanner(os.Stdin)
	for names.Scan() {
		var answer []string
		if measure, ok := rows[names.Text()]; ok {
			for _, number := range measure() {
				answer = append(answer, fmt.Sprint(number))
			}
		}
		fmt.Println(strings.Join(answer, "\t"))
		// What one row leaves behind is not the next one's.
		runtime.GC()
		debug.FreeOSMemory()
	}
}
