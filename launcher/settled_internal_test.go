package launcher

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestCallsAreSettled: a call whose run is cancelled meanwhile is not given up midway, or
// what undoes it could come before it; one that never answers is.
func TestCallsAreSettled(t *testing.T) {
	tests := []struct {
		name  string
		takes time.Duration
		want  error
	}{
		{"answered in time", settleTime - time.Millisecond, nil},
		{"not answered", time.Hour, context.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				err := settled(ctx, func(ctx context.Context) error {
					cancel()
					select {
					case <-time.After(tt.takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				if d := time.Since(began); !errors.Is(err, tt.want) || d != min(tt.takes, settleTime) {
					t.Errorf("after %v: %v, want %v", d, err, tt.want)
				}
			})
		})
	}
	t.Run("not cancelled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			err := settled(t.Context(), func(ctx context.Context) error {
				time.Sleep(time.Hour)
				return ctx.Err()
			})
			if err != nil {
				t.Error(err)
			}
		})
	})
}
