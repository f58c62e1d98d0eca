// The original's framework with the graph of graph.rs, which writes nodes.go beside this file: the constructors and
// `cells`. Prints a line for each part of a life: its name and its median in milliseconds.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
)

const rounds = 30

var parts = []string{"build", "populate", "start", "stop", "total"}

func hook(lifecycle cell.Lifecycle) {
	nothing := func(cell.HookContext) error { return nil }
	lifecycle.Append(cell.Hook{OnStart: nothing, OnStop: nothing})
}

func round(cells []cell.Cell) []time.Duration {
	log, ctx := slog.New(slog.DiscardHandler), context.Background()
	options := hive.DefaultOptions()
	options.LogThreshold = time.Second
	var h *hive.Hive
	times := []time.Duration{
		timed(func() error { h = hive.NewWithOptions(options, cells...); return nil }),
		timed(func() error { return h.Populate(log) }),
		timed(func() error { return h.Start(log, ctx) }),
		timed(func() error { return h.Stop(log, ctx) }),
	}
	var total time.Duration
	for _, time := range times {
		total += time
	}
	return append(times, total)
}

func timed(part func() error) time.Duration {
	begin := time.Now()
	if err := part(); err != nil {
		panic(err)
	}
	return time.Since(begin)
}

func main() {
	times := make([][]time.Duration, len(parts))
	for range rounds {
		for part, time := range round(cells()) {
			times[part] = append(times[part], time)
		}
	}
	for part, name := range parts {
		slices.Sort(times[part])
		fmt.Printf("%s\t%.2f\n", name, times[part][rounds/2].Seconds()*1000)
	}
}
