package verify

// WithListed returns o with what is called when a check has listed the segments.
func (o Options) WithListed(do func()) Options {
	o.listed = do
	return o
}
