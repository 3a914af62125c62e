package query

// DecodeWritten tells whether a line needs no encoding/json.
var DecodeWritten = decodeWritten
