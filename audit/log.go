// Package audit appends records to a tamper-evident log.
package audit
