package zk

// Stat is what ZooKeeper keeps about a node.
type Stat struct {
	Czxid          int64 // the transaction that created it
	Mzxid          int64 // the one that changed its data last
	Ctime, Mtime   int64 // ms since 1970 by the server's clock
	Version        int32 // changes of its data
	Cversion       int32 // changes of its children
	Aversion       int32 // changes of its ACL
	EphemeralOwner int64 // the session that it ends with; 0: none, or a container
	DataLength     int32
	NumChildren    int32
	Pzxid          int64 // the transaction that changed its children last
}

func (d *decoder) stat() Stat {
	return Stat{
		Czxid: d.long(), Mzxid: d.long(), Ctime: d.long(), Mtime: d.long(),
		Version: d.int(), Cversion: d.int(), Aversion: d.int(),
		EphemeralOwner: d.long(), DataLength: d.int(), NumChildren: d.int(), Pzxid: d.long(),
	}
}
