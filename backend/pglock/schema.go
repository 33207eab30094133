package pglock

// Schema is the DDL of what a strategy keeps in the database, for whoever makes tables
// there; options that make no sense have none. It may be run again and again.
func Schema(opts Options) string {
	o, err := opts.complete()
	if err != nil {
		return ""
	}
	if o.Strategy == Advisory {
		return advisorySchema(o)
	}
	return rowSchema(o)
}
