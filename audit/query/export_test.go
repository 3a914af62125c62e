package query

// DecodeWritten tells whether a line needs no encoding/json.
var DecodeWritten = decodeWritten

// Values are those that a field of the log can have.
func Values(field string) []string { return closed[field] }

// SegmentFile is what Segments takes a file for.
var SegmentFile = segmentFile
