package main

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/lpm"
)

// host has two prefixes, one of its own and one that covers everything.
type host struct {
	id      uint16
	address [4]byte
}

func (*host) TableHeader() []string { return []string{"ID"} }
func (h *host) TableRow() []string  { return []string{strconv.Itoa(int(h.id))} }

var hostID = statedb.Index[*host, uint16]{
	Name:       "id",
	FromObject: func(h *host) index.KeySet { return index.NewKeySet(index.Uint16(h.id)) },
	FromKey:    index.Uint16,
	Unique:     true,
}

var hostAddress = statedb.LPMIndex[*host]{
	Name: "address",
	FromObject: func(h *host) iter.Seq2[[]byte, statedb.PrefixLen] {
		return statedb.Just2(h.address[:], statedb.PrefixLen(32))
	},
	Unique: true,
}

var hostPort = statedb.LPMIndex[*host]{
	Name: "port",
	FromObject: func(*host) iter.Seq2[[]byte, statedb.PrefixLen] {
		return statedb.Just2([]byte{}, statedb.PrefixLen(0))
	},
}

func address(at uint32) (bytes [4]byte) {
	binary.BigEndian.PutUint32(bytes[:], at)
	return bytes
}

// scattered has the byte that changes most in front.
func scattered(at uint32) [4]byte { return address(bits.ReverseBytes32(at)) }

func hosts() (*statedb.DB, statedb.RWTable[*host]) {
	db := statedb.New()
	return db, table(db, "hosts", hostID, hostAddress, hostPort)
}

func put(db *statedb.DB, table statedb.RWTable[*host], from, to uint32, address func(uint32) [4]byte) {
	txn := db.WriteTxn(table)
	for id := from; id < to; id++ {
		insert(table, txn, &host{uint16(id), address(id)})
	}
	txn.Commit()
}

func init() {
	rows["DB_WriteTxn_100_LPMIndex"] = func() []float64 {
		db, hosts := hosts()
		return row(100, func() { put(db, hosts, 0, 100, address) })
	}
	rows["DB_WriteTxn_1_LPMIndex"] = func() []float64 {
		db, hosts := hosts()
		put(db, hosts, 0, 0x1_0000, scattered)
		id := uint32(0)
		return row(1, func() {
			id = (id + 1) % 0x1_0000
			put(db, hosts, id, id+1, scattered)
		})
	}
	rows["DB_LPMIndex_Get"] = func() []float64 {
		db, hosts := hosts()
		put(db, hosts, 0, 10_000, address)
		txn := db.ReadTxn()
		var queries []statedb.Query[*host]
		for at := range uint32(10_000) {
			address := address(at)
			queries = append(queries, hostAddress.Query(address[:], 32))
		}
		return row(len(queries), func() {
			for _, query := range queries {
				if _, _, found := hosts.Get(txn, query); !found {
					panic("unknown")
				}
			}
		})
	}
	tree()
}

// tree has the rows of the tree alone.
func tree() {
	key := func(at uint32, length statedb.PrefixLen) index.Key {
		address := address(at)
		return lpm.EncodeLPMKey(address[:], length)
	}
	trie := lpm.New[uint32]()
	txn := trie.Txn()
	var keys []index.Key
	for at := range uint32(1000) {
		keys = append(keys, key(at, 32))
		must(txn.Insert(keys[at], at))
	}
	trie = txn.Commit()
	count := func(iterator *lpm.Iterator[uint32], odd uint32) {
		var sum uint32
		for _, at, ok := iterator.Next(); ok; _, at, ok = iterator.Next() {
			sum += at & 1
		}
		if sum != odd {
			panic(sum)
		}
	}
	network, half := key(0, 16), key(500, 32)
	rows["LPM_All"] = func() []float64 { return row(1000, func() { count(trie.All(), 500) }) }
	rows["LPM_Prefix"] = func() []float64 { return row(1000, func() { count(trie.Prefix(network), 500) }) }
	rows["LPM_LowerBound"] = func() []float64 { return row(500, func() { count(trie.LowerBound(half), 250) }) }
	rows["LPM_Lookup"] = func() []float64 {
		return row(1000, func() {
			for _, key := range keys {
				if _, found := trie.Lookup(key); !found {
					panic("unknown")
				}
			}
		})
	}
}
